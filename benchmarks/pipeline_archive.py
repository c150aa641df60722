"""10,000,000 messages archived from a backlog into the lake, beside Spark copying the same rows in Parquet."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.pipeline_jobs import configured, finish, forget, lake_of, moved, rows_in
from benchmarks.pipeline_rounds import PASSES, Measured, Meter, about, in_spark, take_turns
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_topic import TOPIC, backlog, expect
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENOUGH = {"cold": 700_000.0, "warm": 700_000.0}  # a second
OURS, THEIRS = "archive", "Spark, Parquet to Parquet"
CODEC = "zstd"  # the lake's


def run(setting: Setting) -> list[Table]:
    total = setting.rows(10_000_000, 5_000)
    with backlog(setting, total) as broker, TemporaryDirectory(dir=setting.folder) as folder:
        place = Path(folder)
        config = configured(broker, place)
        rows = place / "rows"
        setting.say("writing them as Parquet")
        in_spark(setting, config, partial(_save, config=config, rows=rows), passes=1)
        ways = {
            OURS: partial(_archive, config=config, total=total),
            THEIRS: partial(_copy, rows=rows, total=total),
        }
        measured = take_turns(setting, config, broker.pid, ways)
    return [
        Table(
            f"Archiving a backlog of {total:,} messages of {PAYLOAD} bytes",
            f"Rows a second from the start of the job (AvailableNow, micro-batches of {config.pipeline.batch:,}) until "
            "it has ended and everything is committed, which is looked up; beside Spark reading and writing the same "
            f"rows as they are, both with {CODEC}. CPU is in seconds for a million rows. {about(setting)}",
            COLUMNS,
            rate_rows(measured, total, OURS, ENOUGH),
            labels=2,
        )
    ]


COLUMNS = (
    Column("what", "what"),
    Column("pass", "JVM"),
    Column("rate", "rows/s"),
    Column("ratio", "of Spark alone", 2),
    Column("broker", "CPU broker", 2),
    Column("jvm", "CPU JVM", 2),
    Column("python", "CPU Python", 2),
)


def rate_rows(
    measured: dict[str, dict[str, Measured]], total: int, ours: str, least: dict[str, float]
) -> tuple[Row, ...]:
    """A row for each way and pass, with a bar for our way: how many a second there are to be at `least`."""
    rows = []
    (theirs,) = measured.keys() - {ours}
    for what, passes in measured.items():
        for name in PASSES:
            seconds, cpu = passes[name]
            values: dict[str, Value] = {"what": what, "pass": name, "rate": total / seconds, "ratio": None}
            values |= {key: each / total * 1e6 for key, each in cpu._asdict().items()}
            if what == ours:
                values["ratio"] = measured[theirs][name].seconds / seconds
            rows.append(Row(values, (Bar("rate", "≥", least[name], "/s"),) if what == ours else ()))
    return tuple(rows)


def _save(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, rows: Path) -> None:
    """The rows as the archive reads them."""
    from stafeta.pipeline.lake.tables import TABLES

    options = {"subscribe": TOPIC, "columns": ",".join(TABLES["messages"].names)}
    reader = spark.read.format("stafeta").option("broker", config.pipeline.broker)
    with meter:
        reader.options(**options).load().write.option("compression", CODEC).parquet(str(rows))


def _archive(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, total: int) -> None:
    here = moved(config, folder)
    forget(here, OURS)
    with meter:
        finish(spark, here, OURS)
    expect(total, rows_in(lake_of(here), "messages"), "the lake")


def _copy(spark: "SparkSession", meter: Meter, folder: Path, *, rows: Path, total: int) -> None:
    copy = str(folder / "copy")
    with meter:
        spark.read.parquet(str(rows)).write.option("compression", CODEC).parquet(copy)
    expect(total, spark.read.parquet(copy).count(), "Parquet")
