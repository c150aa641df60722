"""10,000,000 readings rolled up from a backlog, beside Spark's own groupBy over the same rows in Parquet."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.load import Load
from benchmarks.pipeline_archive import COLUMNS, rate_rows
from benchmarks.pipeline_jobs import configured, finish, forget, lake_of, moved
from benchmarks.pipeline_load import RATE, READINGS, START, TOPICS, close_windows, write_readings
from benchmarks.pipeline_rounds import Meter, about, in_spark, take_turns
from benchmarks.results import Table
from benchmarks.setting import Setting
from benchmarks.spark_topic import expect
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENOUGH = {"cold": 500_000.0, "warm": 1_000_000.0}  # a second
OURS, THEIRS = "rollup", "Spark, groupBy over Parquet"
SIZES = {"1s": 1.0, "1m": 60.0}  # as the lake calls them, and in seconds


def run(setting: Setting) -> list[Table]:
    total = setting.rows(10_000_000, 20_000)
    with TemporaryDirectory(dir=setting.folder) as folder, Broker(Path(folder) / "data", "flight") as broker:
        place = Path(folder)
        config = configured(broker, place)
        config = replace(
            config,
            pipeline=replace(config.pipeline, subscribe=f"{READINGS}/#"),
            rollup=replace(config.rollup, sizes=tuple(SIZES.values())),
        )
        setting.say(f"storing {total:,} readings")
        with Load() as load:
            load.run(bulk.keep, broker.flight, f"{READINGS}/#")
            load.run(write_readings, broker.flight, total)
            load.run(close_windows, broker.flight)
        rows = place / "rows"
        setting.say("writing them as Parquet")
        in_spark(setting, config, partial(_save, config=config, rows=rows), passes=1)
        ways = {
            OURS: partial(_roll_up, config=config, total=total),
            THEIRS: partial(_group, rows=rows, total=total),
        }
        measured = take_turns(setting, config, broker.pid, ways)
    return [
        Table(
            f"Rolling up a backlog of {total:,} readings in windows of {' and '.join(SIZES)}",
            f"Readings a second, of {TOPICS} topics with {RATE} floats a second each, from the start of the job "
            f"(AvailableNow, micro-batches of {config.pipeline.batch:,}) until it has ended and all windows are "
            "published and in the lake, whose counts are looked up. Beside it Spark's batch groupBy with the same "
            "figures for a window (percentile_approx for p50, p95 and p99) over rows of topic, offset, timestamp and "
            f"number, written as Parquet. CPU is in seconds for a million readings. {about(setting)}",
            COLUMNS,
            rate_rows(measured, total, OURS, ENOUGH),
            labels=2,
        )
    ]


def _save(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, rows: Path) -> None:
    """What the job reads, decoded."""
    options = {"subscribe": config.pipeline.subscribe, "columns": "topic,offset,timestamp,number"}
    reader = spark.read.format("stafeta").option("broker", config.pipeline.broker)
    with meter:
        reader.options(decode="true", **options).load().write.parquet(str(rows))


def _roll_up(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, total: int) -> None:
    here = moved(config, folder)
    forget(here, OURS)
    with meter:
        finish(spark, here, OURS)
    windows = lake_of(here).frame(spark, "rollups")
    windows = windows.where(
        windows["start"] < START + timedelta(days=30)
    )  # without those that close the others
    counts = {row["size"]: row["sum(count)"] for row in windows.groupBy("size").sum("count").collect()}
    for label in SIZES:
        expect(total, counts.get(label, 0), f"windows of {label}")


def _group(spark: "SparkSession", meter: Meter, folder: Path, *, rows: Path, total: int) -> None:
    from pyspark.sql import functions as sf

    edge = sf.struct("timestamp", "offset")
    figures = (
        sf.count("number").alias("count"),
        sf.min("number").alias("min"),
        sf.max("number").alias("max"),
        sf.avg("number").alias("mean"),
        sf.stddev("number").alias("stddev"),
        sf.percentile_approx("number", [0.5, 0.95, 0.99]).alias("percentiles"),
        sf.min_by("number", edge).alias("first"),
        sf.max_by("number", edge).alias("last"),
    )
    readings = spark.read.parquet(str(rows))
    with meter:
        for label, seconds in SIZES.items():
            grouped = readings.groupBy("topic", sf.window("timestamp", f"{seconds:g} seconds")).agg(*figures)
            grouped.write.parquet(str(folder / label))
    for label in SIZES:
        counted = spark.read.parquet(str(folder / label)).agg({"count": "sum"}).collect()
        # With those that close the windows of the job.
        expect(total + TOPICS, counted[0][0], f"windows of {label}")
