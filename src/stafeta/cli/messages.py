"""`stafeta put`, `sub` and `unsub`: messages from the shell, and who is to get them."""

import argparse
import os
import select
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import TYPE_CHECKING, cast

from stafeta.cli import connection, exits
from stafeta.cli.rendering import say
from stafeta.errors import ConfigError, Refused
from stafeta.message import Kind

if TYPE_CHECKING:
    pass

_BLOCK = 1024 * 1024


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _register_put(subparsers)
    sub = subparsers.add_parser(
        "sub",
        help="subscribe to a topic or filter",
        description="Subscribes: from now on the broker keeps what is put on the topic until this client has got it. "
        "The topic is made where it does not exist. To repeat it changes nothing.",
        allow_abbrev=False,
    )
    sub.add_argument("topics", metavar="TOPIC", nargs="+", help="a topic, or a filter such as a/+ or a/#")
    unsub = subparsers.add_parser(
        "unsub",
        help="end a subscription",
        description="Ends a subscription. What the broker kept for it is released.",
        allow_abbrev=False,
    )
    unsub.add_argument(
        "topics", metavar="TOPIC", nargs="+", help="the topic or filter, as it was subscribed to"
    )
    for parser, run in ((sub, run_sub), (unsub, run_unsub)):
        _finish(parser, "print JSON, one object a line")
        parser.set_defaults(run=run)


def _register_put(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "put",
        aliases=["pub"],
        help="put a message on a topic",
        description="Puts a message on a topic and prints its id, once the broker has it on disk. If the broker does "
        "not answer (exit code 4) the message is kept, and goes out first when this client next puts one: "
        "do not put it again.",
        allow_abbrev=False,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="?",
        help="the message; '-', or left out: standard input, without the newline at its end unless --kind is bytes",
    )
    parser.add_argument("--file", metavar="FILE", help="read it from a file ('-' is standard input)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", action="store_true", help="make each line of the input a message")
    form.add_argument(
        "--raw",
        action="store_true",
        help="put the bytes as they are, the newline at the end too; of kind bytes",
    )
    parser.add_argument(
        "--kind",
        choices=[kind.word for kind in Kind],
        help="what the message is (string; bytes where it is not UTF-8)",
    )
    parser.add_argument("--create", action="store_true", help="make the topic where it does not exist")
    _finish(parser, "print the topic and the id as JSON")
    parser.set_defaults(run=run_put)


def _finish(parser: argparse.ArgumentParser, json_help: str) -> None:
    parser.add_argument("--json", action="store_true", help=json_help)
    connection.add_options(parser)


def run_put(options: argparse.Namespace) -> int:
    if options.file is not None and options.data is not None:
        raise ConfigError("--file says where the message is: leave DATA out.")
    if options.lines and options.data not in (None, "-"):
        raise ConfigError("--lines reads standard input, or --file: leave DATA out.")
    if options.data not in (None, "-"):
        return _put(os.fsencode(options.data), options)
    with _opened(options.file) as source:
        if options.lines:
            return _put_lines(source, options)
        data = b"".join(_blocks(source))
    return _put(data if options.raw or options.kind == Kind.BYTES.word else _without_newline(data), options)


def run_sub(options: argparse.Namespace) -> int:
    with connection.subscriber(options) as client:
        for topic in options.topics:
            last = client.subscribe(topic)
            say(subscribed(topic, last), options.json, topic=topic, last_id=last)
    return exits.OK


def run_unsub(options: argparse.Namespace) -> int:
    from stafeta.clients.zeromq.replies import Nak

    with connection.subscriber(options) as client:
        for topic in options.topics:
            try:
                client.unsubscribe(topic)
            except Nak as nak:
                if nak.retry:
                    raise
                raise Refused(
                    f"Client {options.client!r} is not subscribed to {topic!r}; 'stafeta subs' lists who is."
                ) from None
            say(unsubscribed(topic), options.json, topic=topic)
    return exits.OK


def subscribed(topic: str, last: int) -> str:
    return f"Subscribed to {topic}, after message {last}."


def unsubscribed(topic: str) -> str:
    return f"Unsubscribed from {topic}."


def text_or_bytes(data: bytes) -> str | bytes:
    """Text where the data is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _put(data: bytes, options: argparse.Namespace) -> int:
    kind = options.kind or (Kind.BYTES.word if options.raw else None)
    with connection.publisher(options) as client:
        number = client.put(options.topic, text_or_bytes(data), kind, create=options.create)
    say(number, options.json, topic=options.topic, id=number)
    return exits.OK


def _put_lines(source: BufferedReader, options: argparse.Namespace) -> int:
    total = first = last = 0
    with connection.publisher(options) as client:
        for lines in _blocks_of_lines(source):
            receipt = client.put_many(
                options.topic, map(text_or_bytes, lines), options.kind, create=options.create
            )
            total += receipt.total
            first = first or receipt.first
            last = receipt.last
    say(total, options.json, topic=options.topic, count=total, first=first, last=last)
    return exits.OK


def _opened(path: str | None) -> BufferedReader:
    if path is not None and path != "-":
        try:
            return open(path, "rb")
        except OSError as error:
            raise ConfigError(f"--file: {path} cannot be read: {error.strerror}.") from None
    if sys.stdin is None:
        raise ConfigError("Standard input is closed: write what is to be put behind the topic.")
    return cast(BufferedReader, sys.stdin.buffer)


def _blocks_of_lines(source: BufferedReader) -> Iterator[list[bytes]]:
    """Lines as they come: a slow writer's are not held back until there are many."""
    begun = b""
    for block in _blocks(source):
        *lines, begun = (begun + block).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if begun:
        yield [begun]


def _blocks(source: BufferedReader) -> Iterator[bytes]:
    """What comes, as it comes. To the buffer the end, and nothing yet, are the same where whoever started the program
    has made its input so."""
    while True:
        try:
            block = os.read(source.fileno(), _BLOCK)
        except BlockingIOError:
            select.select([source], [], [])
            continue
        except OSError as error:
            raise ConfigError(f"The input cannot be read: {error.strerror}.") from None
        if not block:
            return
        yield block


def _without_newline(data: bytes) -> bytes:
    return data[:-1].removesuffix(b"\r") if data.endswith(b"\n") else data
