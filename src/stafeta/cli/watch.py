"""`stafeta watch` and `tail`: looking at messages that are meant for others. No cursor moves."""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from stafeta.cli import connection, exits
from stafeta.cli.get import spells
from stafeta.cli.handover import Handover
from stafeta.cli.numbers import seconds, whole
from stafeta.cli.rendering import Form, add_forms
from stafeta.errors import NoReply, Refused
from stafeta.names import is_filter

if TYPE_CHECKING:
    from stafeta.clients.zeromq.client import Client, Message


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    watch = subparsers.add_parser(
        "watch",
        help="print what is published from now on, and keep nothing",
        description="Prints what is published on topics from now on, until it is stopped. Nothing is kept for it: what "
        "is published while it does not run, while the broker cannot be reached, or while nobody has read its output "
        "for a minute, it does not see.",
        allow_abbrev=False,
    )
    watch.add_argument("topics", metavar="FILTER", nargs="+", help="a topic, or a filter such as a/+ or a/#")
    watch.add_argument("--count", metavar="N", help="leave after N messages")
    watch.add_argument(
        "--wait", metavar="SECONDS", type=seconds, help="leave when none has come for so long (never)"
    )
    watch.set_defaults(run=run_watch)
    tail = subparsers.add_parser(
        "tail",
        help="print the last messages of a topic",
        description="Prints the last messages that topics still hold, acknowledged or not. Nobody's subscription "
        "changes. Exit code 3 says that there are none.",
        allow_abbrev=False,
    )
    tail.add_argument(
        "topics", metavar="TOPIC", nargs="+", help="a topic, or a filter: the last messages of each"
    )
    tail.add_argument("-n", "--count", metavar="N", default="10", help="how many of each topic (10)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what comes, as 'watch' does")
    tail.set_defaults(run=run_tail)
    for parser in (watch, tail):
        add_forms(parser, "print topic, id, kind, time and text as JSON, one object a line")
        connection.add_options(parser)


def run_watch(options: argparse.Namespace) -> int:
    output, form = Handover(), Form.of(options)
    left = None if options.count is None else whole("--count", options.count)
    wait = float("inf") if options.wait is None else options.wait
    with connection.visitor(options) as client, _watching(client):
        for messages in _watched(client, options.topics, wait, output):
            _print(messages[:left], form, output)
            if left is not None:
                left -= len(messages)
                if left <= 0:
                    break
        else:
            return exits.OK if left is None else exits.NOTHING
    return exits.OK


def run_tail(options: argparse.Namespace) -> int:
    output, form = Handover(), Form.of(options)
    count = whole("--count", options.count)
    with connection.visitor(options) as client, _watching(client) if options.follow else nullcontext():
        # It watches before it looks back: what comes meanwhile is in both, and left out once.
        watching = _watched(client, options.topics, float("inf"), output) if options.follow else None
        fresh = next(watching) if watching is not None else []
        reached: dict[str, int] = {}
        for name in _names(client, options.topics):
            try:
                messages = client.last(name, count)
            except Refused:
                if name in options.topics:
                    raise
                continue  # one of a filter's, which has gone meanwhile
            _print(messages, form, output)
            reached |= {message.topic: message.id for message in messages}
        while watching is not None:
            _print([one for one in fresh if one.id > reached.get(one.topic, 0)], form, output)
            fresh = next(watching)
    return exits.OK if reached else exits.NOTHING


def _watched(
    client: "Client", filters: list[str], wait: float, output: Handover
) -> "Iterator[list[Message]]":
    """What is published from now on. The first time it gives what there is at once: then it watches."""
    yield client.watch(*filters)
    while True:
        for spell in spells(wait, output):
            messages = client.watch(*filters, wait=spell)
            if messages:
                break
        if not messages:
            return
        yield messages


@contextmanager
def _watching(client: "Client") -> Iterator[None]:
    """Ends the watching with the command, also where a signal ends that."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not where nohup has them ignored
            signal.signal(number, _leave)
    reached = True
    try:
        yield
    except NoReply:
        reached = False  # it ends by itself, in a minute
        raise
    finally:
        if reached:
            with suppress(NoReply, Refused):
                client.watch()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _names(client: "Client", topics: list[str]) -> list[str]:
    """The topics that are meant, each once."""
    names: dict[str, None] = {}
    for topic in topics:
        found = [one.name for one in client.topics(topic)] if is_filter(topic) else [topic]
        names |= dict.fromkeys(found)
    return list(names)


def _print(messages: "list[Message]", form: Form, output: Handover) -> None:
    output.give([form.shown(message) for message in messages])
    output.check_written()
