"""A topic as Spark reads it: the messages, the reads, and a sink that costs next to nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import stafeta
from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.load import Load, LoadFailed
from benchmarks.setting import Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TOPIC = "bench/0"
KEPT = "bench/#"  # everything here is held for a subscriber that never reads


@contextmanager
def backlog(setting: Setting, total: int) -> Iterator[Broker]:
    """A new broker with so many messages in one topic."""
    with TemporaryDirectory(dir=setting.folder) as folder, Broker(Path(folder), "flight") as broker:
        setting.say(f"storing {total:,} messages")
        with Load() as load:
            load.run(bulk.keep, broker.flight, KEPT)
            load.run(bulk.write, broker.flight, TOPIC, total=total)
        yield broker


def batch(spark: "SparkSession", broker: Broker, **options: str) -> "DataFrame":
    """All of the topic, or what the options of the source say."""
    reader = spark.read.format("stafeta").option("broker", broker.flight).option("subscribe", TOPIC)
    return reader.options(**options).load()


def stream(spark: "SparkSession", broker: Broker, **options: str) -> "DataFrame":
    """The same as a stream, from its beginning."""
    reader = spark.readStream.format("stafeta").option("broker", broker.flight)
    return reader.option("subscribe", TOPIC).options(startingOffsets="earliest", **options).load()


def scan(rows: "DataFrame") -> None:
    """Has Spark make every row, and do nothing with it."""
    rows.write.format("noop").mode("overwrite").save()


def run_through(writer: "DataStreamWriter", folder: Path) -> "StreamingQuery":
    """Runs a query over all that is there now, until it ends; its checkpoint is a new one in the folder."""
    with TemporaryDirectory(prefix="checkpoint-", dir=folder) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return query


def expect(total: int, got: int, where: str) -> None:
    if got != total:
        raise LoadFailed(f"{where}: {got:,} rows instead of {total:,}.")


def expect_visible(total: int, broker: Broker, topic: str) -> None:
    with stafeta.connect(broker.flight) as connection:
        expect(total, sum(each.rows for each in connection.topics(topic)), topic)
