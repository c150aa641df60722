"""The lake's files before and after compaction, of an archive that has grown in many small micro-batches."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.load import Load
from benchmarks.pipeline_jobs import configured, finish, lake_of, rows_in
from benchmarks.pipeline_load import write_days
from benchmarks.pipeline_rounds import Meter, in_spark
from benchmarks.results import Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_session import MASTER, MEMORY
from benchmarks.spark_topic import KEPT, TOPIC, expect
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 2


class Files(NamedTuple):
    """Of the table messages."""

    files: int
    megabytes: float
    on_disk: int
    """Of data, also those that only older snapshots need."""
    on_disk_megabytes: float
    snapshots: int
    counting: float
    """Seconds that a count of the rows of each hour takes."""


def run(setting: Setting) -> list[Table]:
    total, batch = setting.rows(1_000_000, 3_000), setting.sized(10_000, 500)
    with TemporaryDirectory(dir=setting.folder) as folder, Broker(Path(folder) / "data", "flight") as broker:
        place = Path(folder)
        config = configured(broker, place)
        config = replace(
            config,
            pipeline=replace(config.pipeline, batch=batch, subscribe=KEPT),
            compact=replace(config.compact, keep=0.0),
        )
        with Load() as load:
            setting.say(f"storing {total:,} messages")
            load.run(bulk.keep, broker.flight, KEPT)
            load.run(write_days, broker.flight, TOPIC, total, DAYS)
        setting.say(f"archiving them in micro-batches of {batch:,}")
        (archived,) = in_spark(setting, config, partial(_run, config=config, job="archive"), passes=1)
        before = _look(setting, config, total)
        setting.say("compacting")
        (compacted,) = in_spark(setting, config, partial(_run, config=config, job="compact"), passes=1)
        after = _look(setting, config, total)
    rows = []
    for when, files, took in (("before", before, archived.seconds), ("after", after, compacted.seconds)):
        values: dict[str, Value] = {"when": when, **files._asdict(), "took": took}
        rows.append(Row(values | {"mean": files.megabytes / files.files}))
    return [
        Table(
            f"The lake's files, {total:,} messages of {PAYLOAD} bytes archived in micro-batches of {batch:,}",
            f"The table messages, with the messages of {DAYS} days that are over: the files of its current snapshot, "
            "the files of data on disk (also those that only older snapshots need), and its snapshots; how long a "
            "count by hour takes, the second in a session; and how long it took to archive them so, and to compact "
            "them, each once and in a new process without its start. compact.keep is 0: what is old goes at once. "
            f"{MASTER}, spark.driver.memory={MEMORY[setting.quick]}.",
            (
                Column("when", "when"),
                Column("files", "files"),
                Column("megabytes", "MB", 1),
                Column("mean", "MB a file", 2),
                Column("on_disk", "files on disk"),
                Column("on_disk_megabytes", "MB on disk", 1),
                Column("snapshots", "snapshots"),
                Column("counting", "count s", 2),
                Column("took", "archive, compact s", 1),
            ),
            tuple(rows),
        )
    ]


def _run(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, job: str) -> None:
    with meter:
        finish(spark, config, job)


def _look(setting: Setting, config: Config, total: int) -> Files:
    lake = lake_of(config)
    expect(total, rows_in(lake, "messages"), "the lake")
    table = lake.table("messages")
    sizes = [task.file.file_size_in_bytes for task in table.scan().plan_files()]
    location = Path(table.location().removeprefix("file://"))
    stored = [path.stat().st_size for path in (location / "data").rglob("*.parquet")]
    _, counted = in_spark(setting, config, partial(_count, config=config, total=total))
    return Files(
        len(sizes),
        sum(sizes) / 1e6,
        len(stored),
        sum(stored) / 1e6,
        len(table.metadata.snapshots),
        counted.seconds,
    )


def _count(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, total: int) -> None:
    from pyspark.sql import functions as sf

    with meter:
        frame = lake_of(config).frame(spark, "messages")
        found = frame.groupBy("topic", sf.date_trunc("hour", "timestamp")).count().collect()
    expect(total, sum(row["count"] for row in found), "the lake")
