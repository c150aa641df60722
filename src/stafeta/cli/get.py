"""`stafeta get`: messages of subscriptions, acknowledged once they have been taken."""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stafeta.cli import connection, exits
from stafeta.cli.handover import Handover
from stafeta.cli.numbers import seconds
from stafeta.cli.rendering import Form, add_forms
from stafeta.errors import ConfigError

if TYPE_CHECKING:
    from stafeta.clients.zeromq.client import Client, Message

_BATCH = 1000
_OFTEN = 0.1  # seconds between two acknowledgements, where there may be very many messages
_SPELL = 1.0  # seconds of waiting, before it is looked whether somebody reads still


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "get",
        help="get messages of a subscription",
        description="Prints the first message that this client has not got yet, and acknowledges it once it has been "
        "taken: of a pipe, once its reader has read it. Exit code 3 says that there is none. Subscribe first, with "
        "'stafeta sub'.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "topics", metavar="TOPIC", nargs="+", help="a topic or filter, as it was subscribed to"
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--all", action="store_true", help="get all that is there")
    amount.add_argument("--count", metavar="N", type=int, default=1, help="get up to N (1)")
    amount.add_argument(
        "--follow", action="store_true", help="get what is there and what comes, until stopped"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        help="wait for a message where there is none (0); with --follow, end when none has come for so long",
    )
    parser.add_argument(
        "--no-ack",
        action="store_true",
        help="only look: the same messages come again. Shows at most what fits one reply",
    )
    add_forms(parser, "print topic, id, kind, time and text as JSON, one object a line")
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.no_ack and options.follow:
        raise ConfigError("--no-ack does not go with --follow: the same messages would come again and again.")
    if options.count < 1:
        raise ConfigError(f"--count must be at least 1, not {options.count}.")
    with connection.subscriber(options) as client:
        return exits.OK if _get(client, options) or options.follow else exits.NOTHING


def _get(client: "Client", options: argparse.Namespace) -> int:
    """Prints messages; returns how many."""
    output, form = Handover(), Form.of(options)
    topics = list(dict.fromkeys(options.topics))
    got = 0
    wait = options.wait if options.wait is not None else float("inf") if options.follow else 0.0
    endless = options.all or options.follow
    while endless or got < options.count:
        limit = _BATCH if endless else min(_BATCH, options.count - got)
        batch = _next(client, topics, limit, wait, output)
        for taken in _taken(batch, form, output, _OFTEN if endless else 0.0):
            if not options.no_ack:
                client.ack(taken)
        output.check_written()
        got += len(batch)
        if not batch or options.no_ack:
            break
        if options.all:
            wait = 0.0
    return got


def _taken(batch: "list[Message]", form: Form, output: Handover, often: float) -> "Iterator[list[Message]]":
    """Prints messages; gives those that have been taken, not more often than that. Ends where nothing more can be
    handed over."""
    taken: list[Message] = []
    since = time.monotonic()
    for portion in output.portions(batch):
        count = output.give([form.shown(message) for message in portion])
        taken += portion[:count]
        if count < len(portion):
            break
        if time.monotonic() - since >= often:
            yield taken
            taken, since = [], time.monotonic()
    if taken:
        yield taken


def _next(
    client: "Client", topics: Sequence[str], limit: int, wait: float, output: Handover
) -> "list[Message]":
    """The next messages, or none after a while; looks now and then whether somebody reads still."""
    for spell in spells(wait, output):
        if len(topics) == 1:
            batch = client.get_many(topics[0], limit, spell)
        else:
            batch = _first(client, topics, limit) or _first(client, client.wait(topics, spell), limit)
        if batch:
            return batch
    return []


def _first(client: "Client", topics: Sequence[str], limit: int) -> "list[Message]":
    """The next messages of as many of the topics as there is room for."""
    batch: list[Message] = []
    for topic in topics:
        if len(batch) < limit:
            batch += client.get_many(topic, limit - len(batch))
    return batch


def spells(wait: float, output: Handover) -> Iterator[float]:
    """Waiting for so many seconds in all, a spell at a time. Ends the command where nobody reads any more."""
    deadline = time.monotonic() + wait
    while (left := max(deadline - time.monotonic(), 0.0)) > _SPELL:
        yield _SPELL
        output.check()
    yield left
