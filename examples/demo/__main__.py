"""A day of a building in a minute: sensors, a broker, subscribers, and Spark. `make demo`

Sensors send readings by UDP, and some of them fail now and then. People subscribe by TCP; one goes away and comes back.
Spark brings all of it into a lake, rolls it up and raises alerts. At the end lake and log are asked whether each
reading is there once. Everything runs in a temporary folder and ends with the demo. The exit code is 0 if all went as
it should.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from examples import story
from examples.demo.board import Board
from examples.demo.configuration import quick_pipeline
from examples.demo.fleet import SENSORS, Fleet
from examples.demo.listeners import Away, Listener
from examples.demo.proof import prove
from examples.demo.stage import Program, Stage, Unexpected, wait_for
from examples.demo.view import DIM, JOBS, RED, Show, say
from examples.demo.watching import Watcher
from stafeta.addresses import Address
from stafeta.errors import JavaMissing
from stafeta.message import Kind
from stafeta.pipeline.java import check_java

SECONDS: Final = 35.0
_INTERRUPTIONS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TEMPERATURES: Final = "upb/+/temperature"
_PATIENCE: Final = 180.0


class Interrupted(BaseException):
    """A signal asked to end the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Shows Stafeta at work.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=SECONDS, help="how long sensors send (%(default)g)")
    length.add_argument("--forever", action="store_true", help="go on until Ctrl-C")
    length.add_argument("--story", action="store_true", help="a short story instead, without Spark")
    options = parser.parse_args(words)
    if options.story or not _spark():
        return story.main()
    for number in _INTERRUPTIONS:
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="stafeta-demo-") as folder, ExitStack() as closing:
            try:
                _play(Path(folder), closing, None if options.forever else options.seconds)
            finally:
                _shut_signals_out()  # what was started is ended now
    except Unexpected as what:
        say(f"\nThis was not expected: {what}", RED)
        return 1
    except Interrupted as interrupted:
        say("\nInterrupted. Nothing is left behind.", DIM)
        return 128 + interrupted.number
    return 0


def _spark() -> bool:
    """Whether there is one; says what is missing otherwise."""
    try:
        check_java()
    except JavaMissing as error:
        trouble = str(error)
    else:
        if find_spec("pyspark") is not None:
            return True
        trouble = "PySpark is missing: pip install 'stafeta[spark]'."
    say(f"{trouble}\nUntil then, here is a short story that needs no Spark.")
    return False


def _play(folder: Path, closing: ExitStack, seconds: float | None) -> None:
    stage = Stage(folder)
    closing.callback(stage.close)
    config = folder / "demo.toml"
    config.write_text(quick_pipeline(folder / "lake"), encoding="utf-8")
    say("A broker starts, with its log in a temporary folder.")
    broker = stage.broker("devices", "flight", "http")
    closing.callback(broker.close)
    options = ("--config", str(config), "--broker", broker.flight)

    board = Board()
    board.page = f"http://{Address(*broker.door('http'))}/"
    say(f"Its dashboard is at {board.page}")
    watcher = Watcher(broker.flight, config, board)
    closing.callback(watcher.close)
    watcher.hold()
    ana = Listener("ana", "upb/#", *broker.door("devices"))
    ion = Listener("ion", _TEMPERATURES, *broker.door("devices"), away=Away(8.0, 16.0))
    for one in (ana, ion):
        closing.callback(one.close)
        one.start()
    wait_for(lambda: ana.is_there and "devices/ion" in watcher.subscribers(), "the subscribers")

    say(f"Spark starts, for {', '.join(JOBS)}, and {len(SENSORS)} sensors.")
    jobs = stage.start("pipeline", "run", *JOBS, *options, log="pipeline.log")
    fleet = Fleet(*broker.door("devices"))
    closing.callback(fleet.close)
    watcher.start()
    board.began, board.seconds = time.monotonic(), seconds
    fleet.start()
    with Show(board, (ana, ion)):
        _until(seconds, jobs)
        fleet.stop()
        board.doing, board.off = "the sensors are off, Spark finishes", True
        ion.come_back()
        numbers = _finish(fleet, board, watcher, jobs, ion)
        board.doing = "the jobs stop"
        fleet.close()
        jobs.stop()
    sent = dict(fleet.sent)
    shelf = watcher.shelf()
    say(f"The sensors have sent {sum(sent.values()):,} readings.")
    say(f"{board.raised} alerts were raised, and {board.cleared} cleared.")
    say(f"The lake has {shelf.rows:,} messages in {shelf.files:,} files, the log {shelf.log:,} after them.")
    say(f"Ion was away for a while, and has got all {ion.got.total():,} of his.")
    prove(stage, options, sent, numbers)


def _until(seconds: float | None, jobs: Program) -> None:
    """Waits so long, or for ever, while the jobs run."""
    waiting = threading.Event()
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        if not jobs.running:
            raise Unexpected(f"'{jobs}' has ended.\n{jobs.output}")
        waiting.wait(0.2)


def _finish(fleet: Fleet, board: Board, watcher: Watcher, jobs: Program, ion: Listener) -> dict[str, int]:
    """Waits until everything has come where it belongs; returns the numbers that were sent, by topic."""
    sent = {sensor.topic: fleet.sent[sensor.topic] for sensor in SENSORS}
    numbers = {sensor.topic: sent[sensor.topic] for sensor in SENSORS if sensor.kind is not Kind.STRING}
    temperatures = {topic: count for topic, count in sent.items() if topic.endswith("/temperature")}
    wait_for(lambda: watcher.stored().items() >= sent.items(), "the broker to store all readings")
    wait_for(lambda: ion.got == temperatures, "Ion to get all temperatures")

    def rolled_up() -> bool:
        if not jobs.running:
            raise Unexpected(f"'{jobs}' has ended.\n{jobs.output}")
        with board.lock:
            return dict(board.counted) == numbers

    try:
        wait_for(rolled_up, "the rollups of all readings", _PATIENCE)
    except Unexpected as what:
        raise Unexpected(f"{what}\n{jobs.output}") from None
    return numbers


def _interrupt(number: int, _: FrameType | None) -> None:
    _shut_signals_out()
    raise Interrupted(number)


def _shut_signals_out() -> None:
    for number in _INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
