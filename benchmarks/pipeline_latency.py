"""From a reading to the rollup that counts it, and to the alert that it raises, at a subscriber: windows of 1 s, 1,000
readings a second, 50 topics."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import NamedTuple

import psutil

import stafeta
from benchmarks.brokers import Broker, environment
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import memory
from benchmarks.percentiles import percentile
from benchmarks.pipeline_load import READINGS, Arrived, Sent, receive_alerts, receive_rollups, send_evenly
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import Setting

RATE, TOPICS = 1_000, 50
SIZE = "1s"
PATIENCE = 90.0
_SETTINGS = """
[lake]
warehouse = "{folder}/lake"
[pipeline]
broker = "{broker}"
subscribe = "{readings}/#"
trigger = "{trigger}"
[rollup]
sizes = ["{size}"]
delay = "{delay}"
[alerts]
rules = "{folder}/alerts.toml"
"""
RULE = "hot"
_RULES = f"""
[[rule]]
name = "{RULE}"
topics = "{READINGS}/#"
above = 30

[[rule]]
name = "gone"
topics = "{READINGS}/#"
silent_for = "1m"
"""
_LAST = f"{READINGS}/last"
ALERTS = (("alerts",), ("archive", "rollup", "alerts"))


class Case(NamedTuple):
    """As `pipeline.trigger` and `rollup.delay`."""

    trigger: str
    delay: str


class Alerts(NamedTuple):
    """Seconds from readings to their alerts, in order, and what the Python processes of Spark take."""

    ages: list[float]
    memory: float


CASES = (Case("0s", "500ms"), Case("1s", "1s"), Case("1s", "10s"))


class Ages(NamedTuple):
    """Seconds, in order, and how many readings were in no window."""

    of_readings: list[float]
    of_windows: list[float]
    uncounted: int


def run(setting: Setting) -> list[Table]:
    seconds, skipped = setting.sized((90.0, 30.0), (6.0, 1.0))
    rows = []
    for case in setting.sized(CASES, CASES[:1]):
        setting.say(f"trigger {case.trigger}, delay {case.delay}")
        ages = _measure(setting, case, seconds, skipped)
        values: dict[str, Value] = {**case._asdict(), "uncounted": ages.uncounted}
        for key, ordered in (("reading", ages.of_readings), ("window", ages.of_windows)):
            values |= {f"{key}{percent}": percentile(ordered, percent) for percent in (50, 95)}
        bars = (Bar("reading50", "≤", 2, " s (p50)"), Bar("reading95", "≤", 3.5, " s (p95)"))
        rows.append(Row(values, bars if case == CASES[0] else ()))
    alerts = []
    for jobs in setting.sized(ALERTS, ALERTS[:1]):
        setting.say(f"alerts, with {' '.join(jobs)}")
        found = _measure_alerts(setting, jobs, seconds, skipped)
        ages50, ages95 = (percentile(found.ages, percent) for percent in (50, 95))
        figures: dict[str, Value] = {
            "jobs": ", ".join(jobs),
            "reading50": ages50,
            "reading95": ages95,
            "alerts": len(found.ages),
            "memory": found.memory,
        }
        bars = (Bar("reading50", "≤", 1, " s (p50)"), Bar("reading95", "≤", 2, " s (p95)"))
        alerts.append(Row(figures, bars if len(jobs) == 1 else (Bar("memory", "≤", 800, " MB"),)))
    return [
        Table(
            f"From reading to rollup, {RATE:,} readings a second of {TOPICS} topics, windows of {SIZE}",
            "Seconds until the rollup reaches a subscriber of rollup/#: from a reading's own time, and from the end of "
            f"its window. For {seconds - skipped:g} s, after {skipped:g} s that do not count, with `stafeta pipeline "
            "run rollup` and its default settings, but for the two named here: pipeline.trigger, and rollup.delay, for "
            "which a window waits at least. Not counted are readings that came too late for their window.",
            (
                Column("trigger", "trigger"),
                Column("delay", "delay"),
                Column("reading50", "reading p50 s", 2),
                Column("reading95", "reading p95 s", 2),
                Column("window50", "window's end p50 s", 2),
                Column("window95", "window's end p95 s", 2),
                Column("uncounted", "not counted"),
            ),
            tuple(rows),
            labels=2,
        ),
        Table(
            f"From reading to alert, {RATE:,} readings a second of {TOPICS} topics",
            "Seconds from a reading's own time until the alert that it raises or clears reaches a subscriber of "
            f"alerts/#, with `stafeta pipeline run` and these jobs, pipeline.trigger {CASES[0].trigger}; and what all "
            "Python processes that Spark has started take in memory, in proportion where they share it (PSS).",
            (
                Column("jobs", "jobs"),
                Column("reading50", "reading p50 s", 2),
                Column("reading95", "reading p95 s", 2),
                Column("alerts", "alerts"),
                Column("memory", "Python MB"),
            ),
            tuple(alerts),
        ),
    ]


def _measure(setting: Setting, case: Case, seconds: float, skipped: float) -> Ages:
    with (
        TemporaryDirectory(dir=setting.folder) as folder,
        Broker(Path(folder) / "data", "flight") as broker,
        Load() as sender,
        Load() as receiver,
        running(Path(folder), broker.flight, case),
    ):
        place = broker.flight
        # Until a second after the last window, when readings go on, all windows of the time that counts are closed.
        received = receiver.start(receive_rollups, place, SIZE, int(RATE * seconds), PATIENCE)
        sent = sender.run(send_evenly, place, TOPICS, RATE, seconds)
        return ages_of(sent, received(), skipped)


def _measure_alerts(setting: Setting, jobs: Sequence[str], seconds: float, skipped: float) -> Alerts:
    with (
        TemporaryDirectory(dir=setting.folder) as folder,
        Broker(Path(folder) / "data", "flight") as broker,
        Load() as sender,
        Load() as receiver,
        running(Path(folder), broker.flight, CASES[0], jobs) as process,
    ):
        received = receiver.start(receive_alerts, broker.flight, RULE, _LAST, PATIENCE)
        sent = sender.run(send_evenly, broker.flight, TOPICS, RATE, seconds)
        taken = _python_memory(process)
        with stafeta.connect(broker.flight) as connection:
            connection.publish(_LAST, ["1000"], kind="float")
        ages = sorted(each.came - each.time for each in received() if each.time >= sent.begin + skipped)
    if not ages:
        raise LoadFailed("No alert has come of the time that is measured.")
    return Alerts(ages, taken)


def _python_memory(process: psutil.Process) -> float:
    """Megabytes of the Python processes below that of the driver."""
    below = [each for each in process.children(recursive=True) if "java" not in each.name()]
    return sum(memory(each.pid).share for each in below)


def ages_of(sent: Sent, arrived: Sequence[Arrived], skipped: float) -> Ages:
    """Leaves out the windows of the first seconds, and the last one of each topic, which may never close."""
    first = floor(sent.begin + skipped) + 1.0
    last = floor(sent.begin + sent.total / sent.rate)
    counted = {(each.topic, each.start): each for each in arrived if first <= each.start < last}
    if not counted:
        raise LoadFailed("No rollup has come of the time that is measured.")
    readings = []
    expected = 0
    for topic, time in sent.readings():
        window = counted.get((topic, float(floor(time))))
        if first <= time < last:
            expected += 1
        if window is not None:
            readings.append(window.came - time)
    windows = sorted(each.came - each.end for each in counted.values())
    return Ages(sorted(readings), windows, expected - sum(each.readings for each in counted.values()))


@contextmanager
def running(
    folder: Path, broker: str, case: Case, jobs: Sequence[str] = ("rollup",)
) -> Iterator[psutil.Process]:
    """`stafeta pipeline run`, from when its jobs listen until it has ended."""
    (folder / "alerts.toml").write_text(_RULES)
    file = folder / "stafeta.toml"
    file.write_text(
        _SETTINGS.format(folder=folder, broker=broker, readings=READINGS, size=SIZE, **case._asdict())
    )
    command = [sys.executable, "-m", "stafeta", "pipeline", "run", *jobs, "--config", str(file)]
    with (folder / "job.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _await_subscriptions(process, broker, len(jobs))
            yield psutil.Process(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        except LoadFailed as error:
            said = (folder / "job.log").read_text(errors="replace")
            raise LoadFailed(f"{error} The job said:\n{said[-2000:]}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _await_subscriptions(process: "subprocess.Popen[bytes]", broker: str, count: int) -> None:
    deadline = monotonic() + PATIENCE
    with stafeta.connect(broker) as connection:
        while connection.stats()["subscriptions"] < count:
            if process.poll() is not None or monotonic() > deadline:
                raise LoadFailed("The job does not run.")
            sleep(0.1)
