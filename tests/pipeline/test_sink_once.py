"""Each row once, whatever fails and is repeated."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.errors import NotStaged
from stafeta.pipeline.connector.options import WriteOptions
from stafeta.pipeline.connector.sink import BatchSink
from tests.brokers import BrokerProcess
from tests.pipeline.queries import (
    address,
    connect,
    numbered,
    payloads,
    published,
    setting,
    told,
    write,
)
from tests.waiting import PATIENCE

LARGE = 2000  # bytes: a task has put rows aside before it fails


class Sink:
    """A query from topics to a topic, with a checkpoint of its own; can be started again."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.checkpoint = folder
        self._broker = address(broker)
        self._source = spark.readStream.format("stafeta").option("broker", self._broker)

    def start(self, subscribe: str = "input", **options: str) -> StreamingQuery:
        reading = {"subscribe": subscribe, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
        rows = self._source.options(**reading).load().selectExpr("CAST(payload AS STRING) AS value")
        return self.write(rows, **options)

    def write(self, rows: DataFrame, mode: str = "append", **options: str) -> StreamingQuery:
        writer = (
            rows.writeStream.format("stafeta").outputMode(mode).options(broker=self._broker, topic="output")
        )
        writer = writer.option("checkpointLocation", str(self.checkpoint)).options(**options)
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str) -> None:
        assert self.start(**options).awaitTermination(PATIENCE), "the query does not end"

    def forget_commits(self, count: int = 1) -> None:
        """As if the driver had died after the sink's commit, and before Spark's own."""
        commits = self.checkpoint / "commits"
        for number in sorted(int(path.name) for path in commits.iterdir() if path.name.isdecimal())[-count:]:
            (commits / str(number)).unlink()
            (commits / f".{number}.crc").unlink()


# --- tasks


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fails at the end of a task's first attempt, by when the sink has put most of its rows aside."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise ValueError("the first attempt fails")


def test_tasks_that_fail_at_first_leave_each_row_once(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(9000, numPartitions=2).selectExpr(f"rpad(CAST(id AS STRING), {LARGE}, ' ') AS value")
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", "500"):
        write(rows.mapInArrow(failing_at_first, "value string"), broker, topic="output")
    assert [int(payload) for payload in payloads(broker, "output")] == list(range(9000))


def sink_and_rows(broker: BrokerProcess) -> tuple[BatchSink, Iterator[pa.RecordBatch]]:
    sink = BatchSink(WriteOptions.of({"broker": address(broker), "topic": "output"}, streaming=False))
    return sink, iter([pa.record_batch({"value": numbered(1, 5)})])


def test_of_two_attempts_at_a_task_one_counts(broker: BrokerProcess) -> None:
    sink, _ = sink_and_rows(broker)
    attempts = [sink.write(iter([pa.record_batch({"value": numbered(1, 5)})])) for _ in range(2)]
    assert payloads(broker, "output") == []
    sink.commit([attempts[1]])
    late = sink.write(iter([pa.record_batch({"value": numbered(1, 5)})]))
    sink.commit([late])
    sink.commit([attempts[0]])
    assert payloads(broker, "output") == numbered(1, 5)


def test_what_is_aborted_is_never_seen(broker: BrokerProcess) -> None:
    sink, rows = sink_and_rows(broker)
    staged = sink.write(rows)
    sink.abort([staged, None])
    with pytest.raises(NotStaged):
        sink.commit([staged])
    assert payloads(broker, "output") == []


# --- writes with a name


def test_a_write_with_a_name_is_done_once_for_each_version(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    def copy(value: str, app: str, version: int) -> None:
        rows = spark.createDataFrame([(value,)], "value string")
        write(rows, broker, topic="output", txnAppId=app, txnVersion=version)

    copy("a7", "app-a", 7)
    copy("a7", "app-a", 7)
    copy("b0", "app-b", 0)
    copy("a8", "app-a", 8)
    copy("a7", "app-a", 7)
    copy("b0", "app-b", 0)
    for version, value in ((3, "a3"), (7, "b7"), (8, "b8")):
        with told(f"ersion {version} of 'app-a' was"):
            copy(value, "app-a", version)
    assert payloads(broker, "output") == ["a7", "b0", "a8"]


def test_a_name_in_foreach_batch_makes_a_replay_harmless(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, input=numbered(1, 6))
    source = spark.readStream.format("stafeta").options(broker=address(broker), subscribe="input")
    rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=4).load()
    attempts: list[int] = []

    def copy(batch: DataFrame, number: int) -> None:
        write(batch.select("payload"), broker, topic="output", txnAppId="copy", txnVersion=number)
        attempts.append(number)
        if attempts.count(number) == 1:
            raise ValueError("written, and not committed by Spark")

    def run() -> None:
        writer = rows.writeStream.foreachBatch(copy).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="not committed by Spark"):
            run()
    run()
    assert attempts == [0, 0, 1, 1]
    assert payloads(broker, "output") == numbered(1, 6)


# --- streams


def test_a_micro_batch_that_is_replayed_is_written_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    sink = Sink(spark, broker, tmp_path / "checkpoint")
    published(broker, input=numbered(1, 10))
    sink.run()
    assert payloads(broker, "output") == numbered(1, 10)
    sink.forget_commits()
    published(broker, input=numbered(11, 13))
    sink.run()
    assert payloads(broker, "output") == numbered(1, 13)


def test_a_micro_batch_that_is_refused_ends_the_query_with_a_sentence_and_is_not_seen(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    sink = Sink(spark, broker, tmp_path / "checkpoint")
    published(broker, input=[*numbered(1, 6), "seven", "8"])
    query = sink.start(kind="int")
    with told("'seven' is not of the kind int."):
        query.awaitTermination(PATIENCE)
    assert "'seven' is not of the kind int." in str(query.exception())
    assert payloads(broker, "output") == numbered(1, 4), "the micro-batch before it"
    sink.run()
    assert payloads(broker, "output") == [*numbered(1, 6), "seven", "8"]


def test_a_wrong_schema_of_a_stream_is_a_sentence(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, input=["1"])
    source = spark.readStream.format("stafeta").options(broker=address(broker), subscribe="input")
    sink = Sink(spark, broker, tmp_path / "checkpoint")
    with told("The column 'offset' is none that a message has"):
        sink.write(source.load()).awaitTermination(PATIENCE)
    with told("The option 'txnAppId' does not count here: it is for batch writes"):
        sink.run(txnAppId="app")


def test_complete_mode_appends_all_that_it_gives(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    source = spark.readStream.format("stafeta").options(broker=address(broker), subscribe="input")
    counted = source.option("startingOffsets", "earliest").load().groupBy("kind").count()
    sink = Sink(spark, broker, tmp_path / "checkpoint")
    for _ in range(2):
        published(broker, input=["x"])
        query = sink.write(counted.selectExpr("concat(kind, ' ', count) AS value"), "complete")
        assert query.awaitTermination(PATIENCE)
    assert payloads(broker, "output") == ["string 1", "string 2"]


def test_a_broker_that_is_killed_between_micro_batches_changes_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    sink = Sink(spark, broker, tmp_path / "checkpoint")
    published(broker, input=numbered(1, 4))
    sink.run()
    broker.restart()
    sink.forget_commits()
    with connect(broker) as connection:
        connection.publish("input", numbered(5, 6))
    sink.run()
    assert payloads(broker, "output") == numbered(1, 6)
