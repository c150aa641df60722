"""SQL over 10,000,000 readings, half of them in the lake and half in the log, beside the same rows in Parquet."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.load import Load
from benchmarks.percentiles import median
from benchmarks.pipeline_jobs import configured, finish
from benchmarks.pipeline_load import READINGS, TOPICS, write_readings
from benchmarks.pipeline_rounds import spark_of
from benchmarks.results import Column, Row, Table, Value
from benchmarks.setting import Setting
from benchmarks.spark_rounds import chosen, seconds, take_turns
from benchmarks.spark_session import MASTER, MEMORY
from benchmarks.spark_topic import expect
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS, THEIRS = "lake and log", "Parquet"
COUNT = "SELECT count(*) FROM messages"
BY_TOPIC = "SELECT topic, count(*), avg(number) FROM readings GROUP BY topic"
NEEDED = {COUNT: ["offset"], BY_TOPIC: ["topic", "number"]}


def run(setting: Setting) -> list[Table]:
    total = setting.rows(10_000_000, 20_000)
    with TemporaryDirectory(dir=setting.folder) as folder, Broker(Path(folder) / "data", "flight") as broker:
        place = Path(folder)
        config = configured(broker, place)
        config = replace(config, pipeline=replace(config.pipeline, subscribe=f"{READINGS}/#"))
        with Load() as load, Load() as sparks:
            load.run(bulk.keep, broker.flight, f"{READINGS}/#")
            setting.say(f"storing {total // 2:,} readings, to be archived")
            load.run(write_readings, broker.flight, total // 2)
            sparks.run(_archive, setting, config, place)
            setting.say(f"storing {total - total // 2:,} readings, to be left in the log")
            load.run(write_readings, broker.flight, total - total // 2)
            measures = sparks.run(_measure, setting, config, place, total)
    rows = []
    for statement in NEEDED:
        ours, theirs = (median(measures[f"{statement}, {where}"]) for where in (OURS, THEIRS))
        for where, took in ((OURS, ours), (THEIRS, theirs)):
            values: dict[str, Value] = {"what": statement, "from": where, "seconds": took}
            values |= {"rate": total / took, "ratio": theirs / ours if where == OURS else None}
            rows.append(Row(values))
    return [
        Table(
            f"SQL over {total:,} readings of {TOPICS} topics",
            "Seconds from making the views to the last row, with the columns that the statement needs. Half of the "
            "readings are in the lake, half in the log alone. Parquet is what Spark has made of the view readings, in "
            f"which numbers are numbers already; it counts by what its footers say. {chosen(setting)}. {MASTER}, "
            f"spark.driver.memory={MEMORY[setting.quick]}, and otherwise the settings that jobs have.",
            (
                Column("what", "statement"),
                Column("from", "from"),
                Column("seconds", "s", 2),
                Column("rate", "rows/s"),
                Column("ratio", "of Parquet", 2),
            ),
            tuple(rows),
            labels=2,
        )
    ]


def _archive(setting: Setting, config: Config, place: Path) -> None:
    with spark_of(config, setting.quick, place) as spark:
        finish(spark, config, "archive")


def _measure(setting: Setting, config: Config, place: Path, total: int) -> dict[str, list[float]]:
    """Seconds, by statement and place."""
    from stafeta.pipeline import readings

    with spark_of(config, setting.quick, place) as spark:
        rows = place / "rows"
        setting.say("writing them as Parquet")
        readings(spark, config, subscribe=f"{READINGS}/#").drop("decimal").write.parquet(str(rows))
        ways: dict[str, Callable[[], float]] = {}
        for statement in NEEDED:
            for where, make in (
                (OURS, partial(_views, spark, config)),
                (THEIRS, partial(_plain, spark, rows)),
            ):
                ask = partial(_ask, spark, make, statement, total)
                ways[f"{statement}, {where}"] = partial(seconds, ask)
        return take_turns(setting, ways)


def _views(spark: "SparkSession", config: Config, statement: str) -> None:
    from stafeta.pipeline import register

    register(spark, config, columns=NEEDED[statement])


def _plain(spark: "SparkSession", rows: Path, statement: str) -> None:
    frame = spark.read.parquet(str(rows))
    for name in ("messages", "readings"):
        frame.createOrReplaceTempView(name)


def _ask(spark: "SparkSession", make: Callable[[str], None], statement: str, total: int) -> None:
    make(statement)
    found = spark.sql(statement).collect()
    expect(total, sum(row["count(1)"] for row in found), statement)
