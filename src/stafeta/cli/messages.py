"""`stafeta put`, `get`, `sub`, `unsub` and `topics`: messages from the shell."""

import argparse
import os
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import TYPE_CHECKING, cast

from stafeta.cli import connection, exits
from stafeta.cli.rendering import message_line, say, topic_lines, write
from stafeta.errors import ConfigError
from stafeta.message import Kind

if TYPE_CHECKING:
    from stafeta.doors.zeromq.client import Client

_BLOCK = 1024 * 1024
_BATCH = 1000


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _register_put(subparsers)
    _register_get(subparsers)
    sub = subparsers.add_parser(
        "sub",
        help="subscribe to a topic or filter",
        description="Subscribes: from now on the broker keeps what is put on the topic until this client has got it. "
        "The topic is made where it does not exist. To repeat it changes nothing.",
        allow_abbrev=False,
    )
    sub.add_argument("topic", metavar="TOPIC", help="a topic, or a filter such as a/+ or a/#")
    unsub = subparsers.add_parser(
        "unsub",
        help="end a subscription",
        description="Ends a subscription. What the broker kept for it is released.",
        allow_abbrev=False,
    )
    unsub.add_argument("topic", metavar="TOPIC", help="the topic or filter, as it was subscribed to")
    topics = subparsers.add_parser(
        "topics", help="list topics", description="Lists the topics of the broker.", allow_abbrev=False
    )
    topics.add_argument("filter", metavar="FILTER", nargs="?", default="#", help="only those that match")
    for parser, run in ((sub, run_sub), (unsub, run_unsub), (topics, run_topics)):
        _finish(parser, "print JSON, one object a line")
        parser.set_defaults(run=run)


def _register_put(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "put",
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
        default="-",
        help="the message; '-', or left out: standard input, without the newline at its end unless --kind is bytes",
    )
    parser.add_argument("--lines", action="store_true", help="make each line of standard input a message")
    parser.add_argument(
        "--kind",
        choices=[kind.word for kind in Kind],
        help="what the message is (string; bytes where it is not UTF-8)",
    )
    _finish(parser, "print the topic and the id as JSON")
    parser.set_defaults(run=run_put)


def _register_get(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "get",
        help="get messages of a subscription",
        description="Prints the first message that this client has not got yet, and acknowledges it once it has been "
        "printed. Exit code 3 says that there is none. Subscribe first, with 'stafeta sub'.",
        allow_abbrev=False,
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic or filter, as it was subscribed to")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--all", action="store_true", help="get all that is there")
    amount.add_argument("--count", metavar="N", type=int, default=1, help="get up to N (1)")
    amount.add_argument(
        "--follow", action="store_true", help="get what is there and what comes, until stopped"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="wait for a message where there is none (0)",
    )
    parser.add_argument(
        "--no-ack",
        action="store_true",
        help="only look: the same messages come again. Shows at most what fits one reply",
    )
    _finish(parser, "print topic, id, kind, time and text as JSON, one object a line")
    parser.set_defaults(run=run_get)


def _finish(parser: argparse.ArgumentParser, json_help: str) -> None:
    parser.add_argument("--json", action="store_true", help=json_help)
    connection.add_options(parser)


def run_put(options: argparse.Namespace) -> int:
    if options.lines and options.data != "-":
        raise ConfigError("--lines reads standard input: leave DATA out.")
    with connection.publisher(options) as client:
        if options.lines:
            return _put_lines(client, options)
        if options.data == "-":
            data = sys.stdin.buffer.read()
            data = data if options.kind == Kind.BYTES.word else _without_newline(data)
        else:
            data = os.fsencode(options.data)
        number = client.put(options.topic, text_or_bytes(data), options.kind)
    say(number, options.json, topic=options.topic, id=number)
    return exits.OK


def run_get(options: argparse.Namespace) -> int:
    if options.no_ack and options.follow:
        raise ConfigError("--no-ack does not go with --follow: the same messages would come again and again.")
    if options.count < 1:
        raise ConfigError(f"--count must be at least 1, not {options.count}.")
    with connection.subscriber(options) as client:
        return exits.OK if _get(client, options) or options.follow else exits.NOTHING


def run_sub(options: argparse.Namespace) -> int:
    with connection.subscriber(options) as client:
        last = client.subscribe(options.topic)
    say(subscribed(options.topic, last), options.json, topic=options.topic, last_id=last)
    return exits.OK


def run_unsub(options: argparse.Namespace) -> int:
    with connection.subscriber(options) as client:
        client.unsubscribe(options.topic)
    say(unsubscribed(options.topic), options.json, topic=options.topic)
    return exits.OK


def run_topics(options: argparse.Namespace) -> int:
    with connection.visitor(options) as client:
        write(topic_lines(client.topics(options.filter), options.json))
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


def _get(client: "Client", options: argparse.Namespace) -> int:
    """Prints messages; returns how many."""
    got = 0
    wait = float("inf") if options.follow else options.wait
    endless = options.all or options.follow
    while endless or got < options.count:
        limit = _BATCH if endless else min(_BATCH, options.count - got)
        batch = client.get_many(options.topic, limit, wait)
        write(message_line(message, options.json) for message in batch)
        got += len(batch)
        if not batch or options.no_ack:
            break
        client.ack(batch)
        if options.all:
            wait = 0.0
    return got


def _put_lines(client: "Client", options: argparse.Namespace) -> int:
    total = first = last = 0
    for lines in _blocks_of_lines():
        receipt = client.put_many(options.topic, map(text_or_bytes, lines), options.kind)
        total += receipt.total
        first = first or receipt.first
        last = receipt.last
    say(total, options.json, topic=options.topic, count=total, first=first, last=last)
    return exits.OK


def _blocks_of_lines() -> Iterator[list[bytes]]:
    """The lines of standard input as they come: a slow writer's are not held back until there are many."""
    standard_input = cast(BufferedReader, sys.stdin.buffer)
    begun = b""
    while block := standard_input.read1(_BLOCK):
        *lines, begun = (begun + block).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if begun:
        yield [begun]


def _without_newline(data: bytes) -> bytes:
    return data[:-1].removesuffix(b"\r") if data.endswith(b"\n") else data
