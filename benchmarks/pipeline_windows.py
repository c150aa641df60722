"""Windows of 50,000 topics, and of weeks of 58 sensors, until topics and lake have them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time
from typing import Any, Final

import pyarrow as pa

import stafeta
from benchmarks import bulk
from benchmarks.brokers import Broker, environment
from benchmarks.load import Load, LoadFailed
from benchmarks.pipeline_jobs import configured, lake_of
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import Setting
from benchmarks.spark_topic import expect
from stafeta.config import Config

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
MICROS: Final = 1_000_000
MINUTE: Final = 60 * MICROS
EVERY: Final = 5 * MINUTE  # of a sensor
LARGE: Final = 22_000  # readings of the sensors that have most
SENSORS: Final = ("weeks/#", 58, 8)  # their topics, how many there are, and how many have most
TOPICS_IN: Final = Bar("seconds", "≤", 4.0, " s")
WEEKS_IN: Final = Bar("seconds", "≤", 15.0, " s")


def run(setting: Setting) -> list[Table]:
    topics = setting.sized(50_000, 50)
    readings = setting.rows(365_558, 5_000)
    with TemporaryDirectory(dir=setting.folder) as folder:
        place = Path(folder)
        with Broker(place / "topics", "flight") as broker, Load() as load:
            setting.say(f"windows of {topics:,} topics")
            load.run(bulk.keep, broker.flight, "rollup/#")
            config = configured(broker, place / "many")
            handed = list(_handed_on(config, topics))
        with Broker(place / "weeks", "flight") as broker, Load() as load:
            setting.say(f"storing {readings:,} readings of {SENSORS[1]} topics")
            load.run(bulk.keep, broker.flight, SENSORS[0])
            load.run(write_weeks, broker.flight, readings)
            setting.say("rolling them up")
            once = _once(configured(broker, place / "few"), readings)
    return [
        Table(
            f"{topics:,} windows of {topics:,} topics",
            "Seconds from windows that are closed until they are in the lake and in their topics: the first time, when "
            "the topics are made, and then once more. All are held for a subscriber. In a process without Spark, as "
            "the job does it in the driver.",
            (Column("what", "topics"), Column("seconds", "s", 2)),
            tuple(Row({"what": what, "seconds": took}, (TOPICS_IN,)) for what, took in handed),
            labels=1,
        ),
        Table(
            f"{readings:,} readings of {SENSORS[1]} topics in windows of 1h and 1d",
            f"A reading every {EVERY // MINUTE} minutes, up to {LARGE:,} of a topic; seconds that `stafeta pipeline "
            "run rollup --once` takes, from its start to its end, with nothing configured but broker, folders and "
            "sizes.",
            (Column("what", "command"), Column("seconds", "s", 2)),
            (Row({"what": "run rollup --once", "seconds": once}, (WEEKS_IN,)),),
            labels=1,
        ),
    ]


def write_weeks(place: str, total: int) -> None:
    """Publishes so many readings of some sensors, one sensor after the other."""
    filter_, sensors, large = SENSORS
    most = min(LARGE, total // (large + 1))
    counts = [most] * large
    counts += [(total - sum(counts)) // (sensors - large)] * (sensors - large)
    counts[-1] += total - sum(counts)
    values = cycle([f"{20 + number % 97 / 7:.2f}" for number in range(1000)])
    with stafeta.connect(place) as broker:
        for number, count in enumerate(counts):
            times = [_micros(START) + at * EVERY for at in range(count)]
            columns: dict[str, Any] = {
                "payload": [next(values) for _ in range(count)],
                "timestamp": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
            }
            broker.publish(f"{filter_.removesuffix('/#')}/{number:02}", pa.table(columns), kind="float")


def _handed_on(config: Config, topics: int) -> Iterator[tuple[str, float]]:
    from stafeta.pipeline.jobs.rollup import Rolling, Rollup

    pipeline = config.pipeline
    folder = f"{pipeline.checkpoints}/rollup"
    rollup = Rollup(
        lake=lake_of(config),
        broker=pipeline.broker,
        folder=f"{folder}/windows",
        name="rollup/windows",
        sizes=(MINUTE,),
        delay=0,
        log=folder,
    )
    rolling = Rolling(rollup)
    for number, what in enumerate((None, "new", "known")):
        packed = _packed(topics, number, rollup.sizes)
        before = perf_counter()
        rolling.take([(round(time() * MICROS), packed)], number)
        if what is not None:  # else no window is closed yet
            yield what, perf_counter() - before
    with stafeta.connect(pipeline.broker) as broker:
        found = sum(one.next - one.first for one in broker.topics("rollup/#"))
    expect(2 * topics, found, "the topics")
    expect(2 * topics, lake_of(config).table("rollups").scan().to_arrow().num_rows, "the lake")


def _packed(topics: int, number: int, sizes: tuple[int, ...]) -> bytes:
    """What a task makes of a reading of each topic, which closes the window of the one before."""
    import numpy as np

    from stafeta.pipeline.jobs.batches.readings import Readings
    from stafeta.pipeline.jobs.rolling.windows import summed_up

    readings = Readings(
        [f"plant/{number:05}/temperature" for number in range(topics)],
        np.arange(topics),
        np.full(topics, number + 1),
        np.full(topics, _micros(START) + number * MINUTE),
        np.arange(topics) / 8,
        np.ones(topics, bool),
    )
    return summed_up(readings, sizes, _micros(START + timedelta(days=30))).pack()


def _once(config: Config, readings: int) -> float:
    script = Path(sys.executable).with_name("stafeta")
    stafeta_ = [str(script)] if script.exists() else [sys.executable, "-m", "stafeta"]
    pipeline = config.pipeline
    surroundings = environment() | {
        "STAFETA_PIPELINE_BROKER": pipeline.broker,
        "STAFETA_PIPELINE_SUBSCRIBE": SENSORS[0],
        "STAFETA_PIPELINE_CHECKPOINTS": pipeline.checkpoints,
        "STAFETA_LAKE_WAREHOUSE": config.lake.warehouse,
        "STAFETA_ROLLUP_SIZES": "1h,1d",
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
    }
    before = perf_counter()
    done = subprocess.run(
        [*stafeta_, "pipeline", "run", "rollup", "--once"],
        env={name: value for name, value in surroundings.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    took = perf_counter() - before
    if done.returncode:
        raise LoadFailed(f"stafeta pipeline run rollup --once: {done.stderr}")
    rows = lake_of(config).table("rollups").scan(selected_fields=("size", "count")).to_arrow()
    for row in rows.group_by("size").aggregate([("count", "sum")]).to_pylist():
        expect(readings, row["count_sum"], f"windows of {row['size']}")
    return took


def _micros(when: datetime) -> int:
    return round(when.timestamp() * MICROS)
