"""`stafeta bench`: what a broker does on this machine, through a door of your choice."""

import argparse
import signal
from typing import TYPE_CHECKING, Final

from stafeta.cli import credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Self

    from stafeta.bench.plan import Door, Plan
    from stafeta.bench.results import Report

_DOORS: Final = ("flight", "zeromq", "frames", "devices")
_SECONDS: Final = 5.0
_MOST_CLIENTS: Final = 1_000
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure throughput and latency",
        description="Publishes messages and consumes them through one door, and prints throughput and latency. Each "
        "publisher and subscriber is a process of its own; every subscriber gets every message. Without --address a "
        "broker is started on a temporary folder, and gone afterwards.",
        allow_abbrev=False,
    )
    parser.add_argument("--door", choices=_DOORS, default=_DOORS[0], help="which door (flight)")
    parser.add_argument("--address", metavar="HOST:PORT", help="where that door of a running broker is")
    parser.add_argument("--tls", action="store_true", help="with --address: the door takes TLS")
    credentials.add_flight(parser)
    credentials.add_curve(parser)
    parser.add_argument("--size", metavar="BYTES", default="100", help="size of a message (100)")
    parser.add_argument(
        "--batch",
        metavar="N",
        help="how many messages go together (one with --rate; without, as many as suit the door)",
    )
    parser.add_argument(
        "--rate",
        metavar="N",
        help="messages a second, of all publishers together (as fast as possible; 10000 for devices)",
    )
    parser.add_argument("--messages", metavar="N", help="how many messages, of all publishers together")
    parser.add_argument(
        "--seconds", metavar="S", help=f"for how long, if not so many messages ({_SECONDS:g})"
    )
    parser.add_argument("--publishers", metavar="N", default="1", help="how many publishers (1)")
    parser.add_argument("--subscribers", metavar="N", default="1", help="how many subscribers (1)")
    parser.add_argument("--topic", metavar="NAME", help="topic to publish on (a new one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, too: FILE is a .png or .svg")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import json
    import os
    from pathlib import Path

    from stafeta.bench import plot, table
    from stafeta.cli import exits, rendering

    plan = _plan(options)
    path = Path(options.plot) if options.plot else None
    if path:
        plot.check(path)
    try:
        with _Signals() as signals:
            report = _measure(plan, signals.check)
    except _Terminated:  # everything is cleaned up: now it can do what it does
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    printed = json.dumps(report.to_plain()) if options.json else table.text(report)
    rendering.write([printed.encode()])
    if path:
        plot.draw(report, path)
    return exits.OK if _kept_its_word(report) else exits.REFUSED


def _measure(plan: "Plan", check: "Callable[[], None]") -> "Report":
    import time

    from stafeta.bench.run import measure
    from stafeta.progress import Progress

    begin = time.monotonic()

    def fraction(sent: int) -> float:
        done = sent / plan.messages if plan.messages else (time.monotonic() - begin) / (plan.seconds or 1.0)
        return min(done, 1.0) if sent else 0.0

    def advance(published: int) -> None:
        check()
        progress.advance(published - progress.sent)

    with Progress(fraction) as progress:
        return measure(plan, advance)


def _kept_its_word(report: "Report") -> bool:
    """Whether nothing is missing and nothing came twice; of datagrams some may be."""
    import sys

    if not report.repeated and (not report.lost or report.plan.door == "devices"):
        return True
    print(f"stafeta: {report.lost:,} messages are lost, and {report.repeated:,} came again.", file=sys.stderr)
    return False


def _plan(options: argparse.Namespace) -> "Plan":
    import secrets

    from stafeta.bench.plan import DOORS, Plan, batch_of
    from stafeta.cli.numbers import positive, whole
    from stafeta.errors import ConfigError

    door = DOORS[options.door]
    if options.messages is not None and options.seconds is not None:
        raise ConfigError("--messages and --seconds both say how long it takes: leave one of them out.")
    messages = None if options.messages is None else whole("--messages", options.messages)
    seconds = _SECONDS if options.seconds is None else positive("--seconds", options.seconds)
    if options.tls and (options.address is None or options.door == "zeromq"):
        raise ConfigError("--tls goes with --address, and with a door other than ZeroMQ's, which has CURVE.")
    size = _size(options.door, door, options.size)
    rate = door.rate if options.rate is None else positive("--rate", options.rate)
    return Plan(
        options.door,
        "" if options.address is None else _address(door, options.address),
        f"bench/{secrets.token_hex(4)}" if options.topic is None else _topic(options.door, options.topic),
        size,
        batch_of(door, size, rate) if options.batch is None else whole("--batch", options.batch),
        rate,
        messages,
        None if messages else seconds,
        _clients("--publishers", options.publishers),
        _clients("--subscribers", options.subscribers),
        options.tls,
    )


def _size(name: str, door: "Door", text: str) -> int:
    from stafeta.errors import ConfigError
    from stafeta.units import parse_size

    size = parse_size(text)
    if not door.least <= size <= door.most:
        raise ConfigError(
            f"--size must be from {door.least} to {door.most:,} bytes for the {name} door, not {text}: "
            "every message begins with its time and its number."
        )
    return size


def _clients(flag: str, text: str) -> int:
    from stafeta.cli.numbers import whole
    from stafeta.errors import ConfigError

    if (number := whole(flag, text)) > _MOST_CLIENTS:
        raise ConfigError(f"{flag}: each is a process of its own; more than {_MOST_CLIENTS:,} are too many.")
    return number


def _address(door: "Door", text: str) -> str:
    from contextlib import suppress

    from stafeta.addresses import read
    from stafeta.errors import ConfigError

    scheme, _, place = text.rpartition("://")
    with suppress(ConfigError):
        if scheme in ("", door.scheme) and (address := read(place)).port:
            return str(address)
    raise ConfigError(
        f"--address is HOST:PORT or {door.scheme}://HOST:PORT, with the port of the door; {text!r} is not."
    )


def _topic(door: str, name: str) -> str:
    from stafeta.errors import ConfigError, InvalidName
    from stafeta.names import check_name

    try:
        check_name(name)
    except InvalidName as error:
        raise ConfigError(f"--topic: {error}") from None
    if door == "devices" and len(name.encode()) > 50:
        raise ConfigError(f"--topic: a device's topic has at most 50 bytes; {name[:20]!r}… is longer.")
    return name


class _Terminated(BaseException):
    """SIGTERM has come."""


class _Signals:
    """Notes SIGINT and SIGTERM, so that they end what is within only where it can be ended."""

    def __init__(self) -> None:
        self._came: list[int] = []

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt if self._came[0] == signal.SIGINT else _Terminated

    def __enter__(self) -> "Self":
        self._before = {number: signal.signal(number, self._note) for number in _ENDINGS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error[0] is None:
            self.check()

    def _note(self, number: int, frame: "FrameType | None") -> None:
        self._came.append(number)
