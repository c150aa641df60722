"""Runs the jobs archive, rollup and alerts under a steady load, and watches what grows beside the lake.

python -m tests.pipeline.growth_soak [--minutes N] [--rate N] [--topics N] [--plot FILE] [--folder F]

Memory, processes, threads, the files of the checkpoints and the time of a micro-batch are looked at all the time. After
the first ten minutes (a third of a shorter run) none of them may grow: the last part of the run is compared with the
part that follows the beginning.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil
import pyarrow as pa

import stafeta
from benchmarks.picture import DISK, OURS, THEIRS, picture
from stafeta.clients.flight.connection import Connection
from stafeta.pipeline.runner.reports import last_reports
from tests.brokers import BrokerProcess
from tests.pipeline.sessions import environment
from tests.pipeline.soak_actors import Actor
from tests.waiting import PATIENCE, wait_until

JOBS: Final = ("archive", "rollup", "alerts")
WARM: Final = 600.0  # seconds after which nothing may grow
EVERY: Final = 5.0  # seconds between two looks
STEP: Final = 0.2  # seconds between two batches of readings
_RULES: Final = """
[[rule]]
name = "hot"
topics = "plant/#"
above = 29
hysteresis = 1

[[rule]]
name = "gone"
topics = "plant/#"
silent_for = "1m"
"""


class Look(NamedTuple):
    seconds: float
    jvm: float  # MB
    python: float  # MB, what is shared counted once
    processes: int
    threads: int
    files: int  # of the checkpoints
    batch: float  # seconds that the last micro-batches took, the longest of the jobs'
    lag: int


class Bound(NamedTuple):
    """How much more of something there may be in the end: a part of what there was, and some."""

    part: float
    some: float


# A micro-batch takes as long as whatever else the machine does lets it.
BOUNDS: Final = {
    "jvm": Bound(0.10, 50),
    "python": Bound(0.10, 50),
    "processes": Bound(0.10, 2),
    "threads": Bound(0.10, 10),
    "files": Bound(0.10, 20),
    "batch": Bound(0.50, 0.5),
}


def wrong_growth(looks: Sequence[Look], warm: float) -> list[str]:
    """What has grown, as sentences: the median of the last third after `warm` seconds beside that of the first."""
    settled = [look for look in looks if look.seconds >= warm]
    if len(settled) < 6:
        return [f"there are only {len(settled)} looks after {warm:.0f} s, which say nothing"]
    third = len(settled) // 3
    sentences = []
    for name, bound in BOUNDS.items():
        first, last = (
            median(float(getattr(look, name)) for look in part)
            for part in (settled[:third], settled[-third:])
        )
        if last > first * (1 + bound.part) + bound.some:
            sentences.append(f"{name} has grown from {first:.1f} to {last:.1f}")
    return sentences


class Readings:
    """Publishes readings on a thread, at a steady rate."""

    def __init__(self, address: str, rate: int, topics: int) -> None:
        self._address, self._rate = address, rate
        self._topics = [f"plant/{number:02}" for number in range(topics)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        try:
            with stafeta.connect(self._address, timeout=PATIENCE) as connection:
                began, chance = time.monotonic(), random.Random(1)
                while not self._ended.wait(STEP):
                    due = int((time.monotonic() - began) * self._rate) - self.sent
                    if due > 0:
                        self._publish(connection, due, chance)
        except Exception as error:  # noqa: BLE001 - raised where it is looked for
            self.error = error

    def _publish(self, connection: Connection, count: int, chance: random.Random) -> None:
        topics = [self._topics[(self.sent + number) % len(self._topics)] for number in range(count)]
        payloads = [f"{chance.uniform(20, 30):.2f}" for _ in topics]
        connection.publish(None, pa.table({"topic": topics, "payload": payloads, "kind": ["float"] * count}))
        self.sent += count


class Growth:
    """One run, in a folder."""

    def __init__(self, folder: Path, rate: int, topics: int, resources: ExitStack) -> None:
        self.looks: list[Look] = []
        self._checkpoints = folder / "checkpoints"
        broker = BrokerProcess(folder / "data", doors=("flight",))
        resources.callback(broker.kill)  # also if this is ended while it starts
        broker.start()
        self._address = broker.flight
        (folder / "alerts.toml").write_text(_RULES)
        (folder / "stafeta.toml").write_text(_settings(folder, self._address))
        command = [sys.executable, "-m", "stafeta", "pipeline", "run", *JOBS]
        command += ["--config", str(folder / "stafeta.toml")]
        paths = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        self._jobs = Actor("jobs", folder, command, environment=paths)
        resources.callback(self._jobs.kill)
        self._readings = Readings(self._address, rate, topics)
        resources.callback(self._readings.stop)
        self._connection = resources.enter_context(stafeta.connect(self._address, timeout=PATIENCE))

    def run(self, seconds: float) -> None:
        self._jobs.start()
        wait_until(self._is_running)
        self._readings.start()
        began, next_look = time.monotonic(), 0.0
        while (now := time.monotonic() - began) < seconds:
            self._jobs.check()
            if self._readings.error is not None:
                raise self._readings.error
            if now >= next_look:
                next_look = now + EVERY
                self.looks.append(self._look(now))
                if len(self.looks) % 12 == 0:
                    self._tell(self.looks[-1])
            time.sleep(0.2)
        self._readings.stop()
        self._jobs.send(signal.SIGTERM)
        self._jobs.finish(PATIENCE)
        print(f"{self._readings.sent} readings", flush=True)

    def tail(self) -> str:
        return self._jobs.tail()

    def _is_running(self) -> bool:
        self._jobs.check()
        return len([line for line in self._jobs.errors() if line.endswith(": running.")]) >= len(JOBS)

    def _look(self, seconds: float) -> Look:
        jvm = python = 0.0
        processes = threads = 0
        for process in self._jobs.members():
            with suppress(psutil.Error):
                memory = process.memory_full_info().pss / 1e6
                is_jvm = "java" in process.name()
                jvm, python = (jvm + memory, python) if is_jvm else (jvm, python + memory)
                threads += process.num_threads()
                processes += 1
        files = sum(1 for path in self._checkpoints.rglob("*") if path.is_file())
        took = max((_took(self._checkpoints / job) for job in JOBS), default=0.0)
        lag = sum(heard.report.lag for heard in last_reports(self._connection).values())
        return Look(seconds, jvm, python, processes, threads, files, took, lag)

    def _tell(self, look: Look) -> None:
        print(
            f"{look.seconds:6.0f} s  {self._readings.sent} readings; JVM {look.jvm:.0f} MB, Python {look.python:.0f} "
            f"MB, {look.processes} processes, {look.threads} threads, {look.files} files, micro-batch "
            f"{look.batch:.2f} s, {look.lag} wait",
            flush=True,
        )


def _settings(folder: Path, broker: str) -> str:
    sections: dict[str, dict[str, object]] = {
        "lake": {"warehouse": str(folder / "lake")},
        "pipeline": {"broker": broker, "checkpoints": str(folder / "checkpoints"), "grace": "1m"},
        "rollup": {"sizes": ["10s", "1m"], "delay": "5s"},
        "alerts": {"rules": str(folder / "alerts.toml")},
    }
    return "".join(
        f"[{section}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        for section, options in sections.items()
    )


def _took(checkpoint: Path) -> float:
    """How long the last micro-batches of a job took, from their plan to their commit, in the middle."""
    times = []
    with suppress(FileNotFoundError):
        done = sorted(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdecimal())
        for number in done[-5:]:
            planned, committed = (checkpoint / log / str(number) for log in ("offsets", "commits"))
            times.append(committed.stat().st_mtime - planned.stat().st_mtime)
    return median(times) if times else 0.0


def draw(looks: Sequence[Look], warm: float, path: Path) -> None:
    """Each figure over time; the line says from when on nothing may grow."""
    panels = (
        ("memory, MB", (("jvm", "JVM", OURS), ("python", "Python", THEIRS))),
        ("processes and threads", (("processes", "processes", OURS), ("threads", "threads", THEIRS))),
        ("files of the checkpoints", (("files", "files", DISK),)),
        ("time of a micro-batch, s", (("batch", "the slowest job's", OURS),)),
    )
    minutes = [look.seconds / 60 for look in looks]
    with picture(path, 5.2, quick=False) as figure:
        for axes, (title, lines) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            for name, label, colour in lines:
                axes.plot(minutes, [getattr(look, name) for look in looks], color=colour, label=label)
            axes.axvline(warm / 60, color=THEIRS, linestyle=":", linewidth=1)
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("minutes")
            if len(lines) > 1:
                axes.legend(frameon=False, fontsize=7.5)


def _end(number: int, _: object) -> None:
    """So that what was started is ended, however often one asks for it."""
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="growth_soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--rate", type=int, default=500, help="readings a second (500)")
    parser.add_argument("--topics", type=int, default=50, help="topics (50)")
    parser.add_argument("--plot", type=Path, help="where to draw it, an SVG")
    parser.add_argument("--folder", type=Path, help="where to work, an empty folder; kept afterwards")
    options = parser.parse_args(words)
    seconds = options.minutes * 60
    warm = min(WARM, seconds / 3)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    with (
        tempfile.TemporaryDirectory(prefix="growth-", ignore_cleanup_errors=True) as temporary,
        ExitStack() as all_,
    ):
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        growth = Growth(folder, options.rate, options.topics, all_)
        try:
            growth.run(seconds)
            wrong = wrong_growth(growth.looks, warm)
        except AssertionError as error:
            wrong = [f"{error}\n{growth.tail()}"]
        if options.plot and growth.looks:
            draw(growth.looks, warm, options.plot)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print("it is not as it should be" if wrong else "nothing grows but the lake")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
