"""The options of jobs on the command line, which must be there before a job is imported: that would take its time."""

import argparse
from collections.abc import Callable
from typing import Final


def archive(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="go on without messages that are neither in the lake nor in the log",
    )


def audit(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--topic", metavar="FILTER", default="", help="look at these topics (those of pipeline.subscribe)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def replay(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--topic", metavar="FILTER", required=True, help="the topics to replay")
    parser.add_argument(
        "--into",
        metavar="TOPIC",
        required=True,
        help="where to: a topic, or one with {topic} in it; {topic} alone is the same topics",
    )
    parser.add_argument("--from", metavar="TIME", dest="since", help="from this time on")
    parser.add_argument("--to", metavar="TIME", dest="until", help="up to, not including, this time")
    parser.add_argument("--from-offset", metavar="N", type=int, help="from this offset on")
    parser.add_argument("--to-offset", metavar="N", type=int, help="up to, not including, this offset")
    parser.add_argument(
        "--rate", default="full", help="messages a second, or original: as they came, or full: at once (full)"
    )
    parser.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="with --rate original: so many times as fast"
    )
    parser.add_argument("--keep-times", action="store_true", help="with the timestamps that they had")
    parser.add_argument("--name", help="go on with the replay of this name, or give it one")


def compact(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--today", action="store_true", help="the day that is not over as well")


OPTIONS: Final[dict[str, Callable[[argparse._ArgumentGroup], None]]] = {
    "archive": archive,
    "audit": audit,
    "replay": replay,
    "compact": compact,
}
"""What adds a job's options, by its name; those that have none are not here."""
