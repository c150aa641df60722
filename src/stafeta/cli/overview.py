"""`stafeta topics`, `stats`, `clients` and `subs`: what a broker has, and who waits for what."""

import argparse
from typing import TYPE_CHECKING

from stafeta.cli import connection, exits
from stafeta.cli.rendering import json_line, table, topic_lines, write

if TYPE_CHECKING:
    pass


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    topics = subparsers.add_parser(
        "topics", help="list topics", description="Lists the topics of the broker.", allow_abbrev=False
    )
    topics.add_argument("filter", metavar="FILTER", nargs="?", default="#", help="only those that match")
    stats = subparsers.add_parser(
        "stats",
        help="print what the broker is doing",
        description="Prints what the broker is doing: its version, how long it has run, and how many topics, "
        "subscriptions, clients and messages it has seen.",
        allow_abbrev=False,
    )
    clients = subparsers.add_parser(
        "clients",
        help="list clients",
        description="Lists the clients that have subscriptions, through any door, and connected devices, and how many "
        "messages wait for each. 'connected' says that it is, or that it waits for messages just now.",
        allow_abbrev=False,
    )
    subs = subparsers.add_parser(
        "subs",
        help="list subscriptions: who waits for what",
        description="Lists the subscriptions of all clients: how many messages each is behind, and how many seconds "
        "ago the oldest of them was published.",
        allow_abbrev=False,
    )
    subs.add_argument(
        "filter",
        metavar="TOPIC",
        nargs="?",
        default="",
        help="only those that match this topic, or are to this filter",
    )
    for parser, run in ((topics, run_topics), (stats, run_stats), (clients, run_clients), (subs, run_subs)):
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print JSON, one object a line")
        if parser is topics:
            form.add_argument("--plain", action="store_true", help="print the names only")
        connection.add_options(parser)
        parser.set_defaults(run=run)


def run_topics(options: argparse.Namespace) -> int:
    with connection.visitor(options) as client:
        found = client.topics(options.filter)
    write([one.name.encode() for one in found] if options.plain else topic_lines(found, options.json))
    return exits.OK


def run_stats(options: argparse.Namespace) -> int:
    with connection.visitor(options) as client:
        stats = client.stats()
    if options.json:
        write([json_line(stats)])
        return exits.OK
    counts = {
        "topics": "topics",
        "subscriptions": "subscriptions",
        "clients": "clients that have some",
        "messages": "messages since the start",
        "position": "messages ever",
        "pending": "bytes on their way to disk",
    }
    rows = [["version", stats["version"]], ["running for", duration(stats["uptime"])]]
    for key, name in counts.items():
        if key in stats:  # who does not administer the broker is told less
            rows.append([name, f"{stats[key] - (key == 'position'):,}"])
    write(table(rows, "<>"))
    return exits.OK


def run_clients(options: argparse.Namespace) -> int:
    with connection.visitor(options) as client:
        found = client.clients()
    if options.json:
        write([json_line(one._asdict()) for one in found])
        return exits.OK
    rows = [[one.client, f"{one.subscriptions:,}", _yes(one.connected), f"{one.behind:,}"] for one in found]
    write(table([["CLIENT", "SUBSCRIPTIONS", "CONNECTED", "BEHIND"], *rows], "<><>"))
    return exits.OK


def run_subs(options: argparse.Namespace) -> int:
    with connection.visitor(options) as client:
        found = client.subscriptions(options.filter)
    if options.json:
        write([json_line(one._asdict()) for one in found])
        return exits.OK
    head = ["CLIENT", "FILTER", "TOPICS", "CONNECTED", "BEHIND", "OLDEST"]
    rows = [
        [
            one.client,
            one.filter,
            f"{one.topics:,}",
            _yes(one.connected),
            f"{one.behind:,}",
            duration(one.seconds) if one.behind else "-",
        ]
        for one in found
    ]
    write(table([head, *rows], "<<><>>"))
    return exits.OK


def duration(seconds: float) -> str:
    """A time as people say it: in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
