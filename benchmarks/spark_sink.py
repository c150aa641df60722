"""5,000,000 rows written to a topic by Spark, exactly once, by streaming queries and in batch; beside Parquet."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.brokers import Broker
from benchmarks.percentiles import median
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_rounds import chosen, seconds, take_turns
from benchmarks.spark_session import about, session
from benchmarks.spark_topic import backlog, expect, expect_visible, run_through, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENOUGH = Bar("rate", "≥", 300_000, "/s")
FILES = 8  # of Parquet that the rows come from
SCHEMA = "payload binary"


class Way(NamedTuple):
    how: str
    source: str
    sink: str

    def __str__(self) -> str:
        return f"{self.how} from {self.source} to {self.sink}"


class _Job(NamedTuple):
    """What the ways need."""

    setting: Setting
    spark: "SparkSession"
    broker: Broker
    total: int
    rows: Path  # in Parquet
    topics: Iterator[str]  # that nothing was written to yet

    def parquet(self, *, streaming: bool) -> "DataFrame":
        reader = self.spark.readStream if streaming else self.spark.read
        return reader.schema(SCHEMA).parquet(str(self.rows))

    def topic(self) -> "DataFrame":
        return stream(self.spark, self.broker, columns="payload")


def run(setting: Setting) -> list[Table]:
    total = setting.sized(5_000_000, 5_000)
    spark = session(setting)
    with backlog(setting, total) as broker, TemporaryDirectory(dir=setting.folder) as folder:
        topics = (f"bench/{number}" for number in count(1))
        job = _Job(setting, spark, broker, total, Path(folder) / "rows", topics)
        setting.say(f"making {total:,} rows in Parquet")
        _made(spark, total).write.parquet(str(job.rows))
        streamed, whole = (partial(job.parquet, streaming=streaming) for streaming in (True, False))
        ways: dict[Way, Callable[[], float]] = {
            Way("stream", "Parquet", "Stafeta"): partial(_to_topic, job, streamed),
            Way("stream", "Parquet", "Parquet"): partial(_to_parquet, job, streamed),
            Way("batch", "Parquet", "Stafeta"): partial(_to_topic, job, whole),
            Way("batch", "Parquet", "Parquet"): partial(_to_parquet, job, whole),
            Way("stream", "Stafeta", "Stafeta"): partial(_to_topic, job, job.topic),
        }
        measures = take_turns(setting, {str(way): work for way, work in ways.items()})
    rows = []
    for way in ways:
        values: dict[str, Value] = {**way._asdict(), "rate": total / median(measures[str(way)])}
        rows.append(Row(values, (ENOUGH,) if way.sink == "Stafeta" else ()))
    return [
        Table(
            f"Writing {total:,} messages of {PAYLOAD} bytes exactly once",
            "Rows a second until the write or query (AvailableNow, one micro-batch) has ended and everything is "
            f"visible, which is looked up. {chosen(setting)}; each to a new topic. The rows come from "
            f"{FILES} files of Parquet, or from a topic. {about(spark)}",
            (
                Column("how", "how"),
                Column("source", "from"),
                Column("sink", "to"),
                Column("rate", "rows/s"),
            ),
            tuple(rows),
            labels=3,
        )
    ]


def _made(spark: "SparkSession", total: int) -> "DataFrame":
    """Rows of hexadecimal digits that no codec makes much smaller."""
    from pyspark.sql import functions as sql

    digits = sql.sha2(sql.col("id").cast("string"), 512)
    payload = sql.substring(digits, 1, PAYLOAD).cast("binary").alias("payload")
    return spark.range(0, total, 1, FILES).select(payload)


def _to_topic(job: _Job, rows: "Callable[[], DataFrame]") -> float:
    topic = next(job.topics)
    return seconds(lambda: _publish(job, rows(), topic))


def _publish(job: _Job, rows: "DataFrame", topic: str) -> None:
    """Writes, and sees that all of it is there."""
    options = {"broker": job.broker.flight, "topic": topic}
    if rows.isStreaming:
        run_through(rows.writeStream.format("stafeta").options(**options), job.setting.folder)
    else:
        rows.write.format("stafeta").mode("append").options(**options).save()
    expect_visible(job.total, job.broker, topic)


def _to_parquet(job: _Job, rows: "Callable[[], DataFrame]") -> float:
    with TemporaryDirectory(dir=job.setting.folder) as folder:
        written = str(Path(folder) / "written")
        took = seconds(lambda: _save(job, rows(), written))
        expect(job.total, job.spark.read.parquet(written).count(), "Parquet")
    return took


def _save(job: _Job, rows: "DataFrame", path: str) -> None:
    if rows.isStreaming:
        run_through(rows.writeStream.format("parquet").option("path", path), job.setting.folder)
    else:
        rows.write.parquet(path)
