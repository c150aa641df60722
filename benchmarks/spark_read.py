"""A topic of 10,000,000 messages in a batch read by Spark, beside the same rows in Parquet; and the memory it takes."""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.brokers import Broker
from benchmarks.percentiles import median
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_memory import Watch, below, one
from benchmarks.spark_rounds import chosen, seconds, take_turns
from benchmarks.spark_session import about, collect_garbage, driver, session
from benchmarks.spark_topic import TOPIC, backlog, batch, expect, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HALF = Bar("ratio", "≥", 0.5, " of Parquet")
CONSTANT = Bar("ratio", "≤", 1.5, " times")
ALL, ONE, COUNT = "all columns", "payload only", "count()"
OURS, THEIRS = "Stafeta", "Parquet"
JVM, PYTHON, TASKS, BROKER = "driver's JVM", "driver's Python", "largest Python worker", "broker"


def run(setting: Setting) -> list[Table]:
    total, fewer, first = setting.sized((10_000_000, 2_000_000, 100_000), (5_000, 1_000, 500))
    spark = session(setting)
    with backlog(setting, total) as broker, TemporaryDirectory(dir=setting.folder) as folder:
        # Before anything else is read: a heap that has grown once does not shrink again.
        memory = _memory(setting, spark, broker, first, (fewer, total))
        file = Path(folder) / "messages"
        setting.say("writing them as Parquet")
        batch(spark, broker).write.parquet(str(file))
        ways = _ways(spark, broker, file, total)
        measures = take_turns(setting, {f"{what}, {where}": ways[what, where] for what, where in ways})
        rates = {(what, where): total / median(measures[f"{what}, {where}"]) for what, where in ways}
        return [_rates(setting, spark, file, total, rates), memory]


def _ways(
    spark: "SparkSession", broker: Broker, file: Path, total: int
) -> dict[tuple[str, str], Callable[[], float]]:
    """Each from the making of the DataFrame to the end; how many seconds that took."""

    def count(rows: "Callable[[], DataFrame]") -> None:
        expect(total, rows().count(), COUNT)

    ours, theirs = partial(batch, spark, broker), partial(spark.read.parquet, str(file))
    works: dict[tuple[str, str], Callable[[], object]] = {
        (ALL, OURS): lambda: scan(ours()),
        (ALL, THEIRS): lambda: scan(theirs()),
        (ONE, OURS): lambda: scan(ours(columns="payload")),
        (ONE, THEIRS): lambda: scan(theirs().select("payload")),
        (COUNT, OURS): partial(count, ours),
        (COUNT, THEIRS): partial(count, theirs),
    }
    return {key: partial(seconds, work) for key, work in works.items()}


def _rates(
    setting: Setting, spark: "SparkSession", file: Path, total: int, rates: Mapping[tuple[str, str], float]
) -> Table:
    rows = []
    for (what, where), rate in rates.items():
        values: dict[str, Value] = {"what": what, "from": where, "rate": rate, "ratio": None}
        if where == OURS:
            values["ratio"] = rate / rates[what, THEIRS]
        rows.append(Row(values, (HALF,) if where == OURS and what != COUNT else ()))
    parts = list(file.glob("*.parquet"))
    size = sum(part.stat().st_size for part in parts) / 1e6
    codec = spark.conf.get("spark.sql.parquet.compression.codec")
    return Table(
        f"Batch read of {total:,} messages of {PAYLOAD} bytes",
        f"Rows a second into the sink noop, from load() to the end, and of count(). {chosen(setting)}; "
        f"the files are in the system's cache. Parquet is what Spark has made of the topic, {size:,.0f} MB in "
        f"{len(parts)} files, {codec}; it counts by what its footers say. {about(spark)}",
        (
            Column("what", "what"),
            Column("from", "from"),
            Column("rate", "rows/s"),
            Column("ratio", "of Parquet", 2),
        ),
        tuple(rows),
        labels=2,
    )


def _memory(
    setting: Setting, spark: "SparkSession", broker: Broker, first: int, totals: tuple[int, int]
) -> Table:
    fewer, total = totals
    java = driver(spark)
    watched = {JVM: one(java), PYTHON: one(os.getpid()), TASKS: below(java), BROKER: one(broker.pid)}
    _read(spark, broker, first)
    watches = []
    for rows in totals:
        setting.say(f"memory while {rows:,} are read")
        collect_garbage(spark)
        with Watch(watched) as watch:
            _read(spark, broker, rows)
        watches.append(watch)
    small, large = watches
    rows_of = []
    for label in watched:
        values: dict[str, Value] = {
            "process": label,
            "before": small.before[label],
            "small": small.highest[label],
            "large": large.highest[label],
            "ratio": large.highest[label] / small.highest[label],
        }
        rows_of.append(Row(values, (CONSTANT,) if label != TASKS else ()))
    return Table(
        f"Memory while {fewer:,} and {total:,} messages are read",
        f"MB resident, sampled: after a first read of {first:,} messages of the topic, all columns; the most during "
        f"one of {fewer:,}, and then during one of {total:,}; and how many times as much that is. The JVM is driver "
        "and executor in one, and takes of the heap that it is allowed before it looks what it can do without. Python "
        "workers plan the read, and read for the tasks.",
        (
            Column("process", "process"),
            Column("before", "before MB"),
            Column("small", f"{fewer:,}: MB"),
            Column("large", f"{total:,}: MB"),
            Column("ratio", "times", 2),
        ),
        tuple(rows_of),
    )


def _read(spark: "SparkSession", broker: Broker, total: int) -> None:
    scan(batch(spark, broker, endingOffsets=json.dumps({TOPIC: total + 1})))
