"""Writes whose names were used before: which are repeats, and which are refused since their rows would be lost."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.errors import OutOfSequence
from stafeta.pipeline.connector.options import WriteOptions
from stafeta.pipeline.connector.repeats import digest
from stafeta.pipeline.connector.sink import FORGET_AFTER, BatchSink, _commit, _stage
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, numbered, payloads, published, write
from tests.waiting import PATIENCE

OTHER_ROWS = "was written before, with other rows"


def options(broker: BrokerProcess, version: int = 0, app: str = "app", **more: str) -> WriteOptions:
    named = {"txnAppId": app, "txnVersion": str(version), "topic": "output"}
    return WriteOptions.of({"broker": address(broker), **named, **more}, streaming=False)


def parts(*partitions: list[str]) -> Iterator[Iterator[pa.RecordBatch]]:
    for rows in partitions:
        yield iter([pa.record_batch({"value": pa.array(rows, pa.string())})])


def put(broker: BrokerProcess, version: int, *partitions: list[str], app: str = "app") -> None:
    """A write of a job, each partition by a task."""
    sink = BatchSink(options(broker, version, app))
    sink.commit([sink.write(rows) for rows in parts(*partitions)])


# --- rows


def test_a_digest_depends_on_the_rows_and_neither_on_their_order_nor_on_their_times() -> None:
    def of(rows: list[tuple[str, str, int]]) -> tuple[int, int]:
        topics, values, times = zip(*rows, strict=True)
        return digest(pa.record_batch({"topic": topics, "payload": values, "timestamp": times}))

    rows = [("a", "1", 1), ("b", "2", 2), ("b", "", 3), ("b", "", 4)]
    assert of(rows) == of(rows[::-1]) == of([(topic, value, 9) for topic, value, _ in rows])
    first, second = of(rows[:1]), of(rows[1:])
    assert of(rows) == (first[0] + second[0], (first[1] + second[1]) % (1 << 64))
    others = [rows[:3], [("b", "1", 1), ("a", "2", 2), *rows[2:]], [("a", "1", 1), ("b", "3", 2), *rows[2:]]]
    assert len({of(rows), *map(of, others)}) == 4
    pairs = {
        of([("a", f"{one}{two}", 1), ("a", f"{two}{one}", 1)]) for one in range(10) for two in range(one)
    }
    assert len(pairs) == 45
    text, data = pa.array(["ș"]), pa.array(["ș".encode()])
    assert digest(pa.record_batch({"payload": text})) == digest(pa.record_batch({"payload": data}))


# --- writes


def test_a_write_is_repeated_however_its_rows_are_parted_and_ordered(broker: BrokerProcess) -> None:
    put(broker, 3, ["1", "2"], ["3"])
    put(broker, 3, ["3"], [], ["2"], ["1"])
    put(broker, 4, ["4"])
    put(broker, 3, ["1", "2", "3"])
    put(broker, 4, ["4"])
    assert payloads(broker, "output") == ["1", "2", "3", "4"]


def test_another_write_of_the_same_name_is_refused_and_nothing_of_it_is_written(
    broker: BrokerProcess,
) -> None:
    put(broker, 3, ["1", "2"])
    put(broker, 4, ["3"])
    with pytest.raises(OutOfSequence, match=rf"Version 4 of 'app' {OTHER_ROWS} \(1, now 2\)") as caught:
        put(broker, 4, ["3"], ["4"])
    assert caught.value.expected == 5
    with pytest.raises(OutOfSequence, match=rf"Version 3 of 'app' {OTHER_ROWS} \(2, now 2\)"):
        put(broker, 3, ["1", "3"])
    with pytest.raises(OutOfSequence, match="It is not known what version 2 of 'app' was: the last is 4"):
        put(broker, 2, ["0"])
    assert payloads(broker, "output") == ["1", "2", "3"]
    put(broker, 5, ["3"], ["4"])
    put(broker, 0, ["0"], app="other")
    assert payloads(broker, "output") == ["1", "2", "3", "3", "4", "0"]


def test_no_rows_are_lost_by_no_version(broker: BrokerProcess) -> None:
    put(broker, 3, [], [])
    put(broker, 3)
    put(broker, 3, ["1"])
    for version in (0, 3):
        put(broker, version, [], [])
    put(broker, 3, ["1"])
    assert payloads(broker, "output") == ["1"]


def test_of_two_jobs_that_write_one_version_at_the_same_time_the_second_is_refused(
    broker: BrokerProcess,
) -> None:
    one, two, three = (BatchSink(options(broker, 1)) for _ in range(3))
    staged: list[list[WriterCommitMessage | None]] = [
        [sink.write(rows) for rows in parts(*partitions)]
        for sink, partitions in ((one, (["1"], ["2"])), (two, (["1"], ["3"])), (three, (["2", "1"],)))
    ]
    one.commit(staged[0])
    with pytest.raises(OutOfSequence, match=OTHER_ROWS):
        two.commit(staged[1])
    two.abort(staged[1])
    three.commit(staged[2])
    assert payloads(broker, "output") == ["1", "2"]


def test_a_task_that_comes_after_the_commit_is_part_of_the_same_write(broker: BrokerProcess) -> None:
    sink = BatchSink(options(broker, 1))
    first, second = parts(["1"], ["2"])
    early = sink.write(first)
    put(broker, 1, ["1", "2"])
    late = sink.write(second)
    assert (early.is_done, late.is_done) == (False, True)
    sink.commit([early, late])
    assert payloads(broker, "output") == ["1", "2"]


def test_what_was_written_without_a_label_is_repeated_as_before(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        for version in (3, 4):
            transaction = connection.transaction("spark/app#output", version)
            transaction.write("output", [str(version)])
            transaction.commit()
    put(broker, 4, ["not looked at"])
    with pytest.raises(OutOfSequence, match="not known what version 3 of 'app' was: the last is 4"):
        put(broker, 3, ["3"])
    put(broker, 5, ["5"])
    assert payloads(broker, "output") == ["3", "4", "5"]


def test_labels_outlive_a_broker_that_is_killed(broker: BrokerProcess) -> None:
    put(broker, 1, ["1"])
    broker.restart()
    put(broker, 1, ["1"])
    with pytest.raises(OutOfSequence, match=OTHER_ROWS):
        put(broker, 1, ["2"])
    assert payloads(broker, "output") == ["1"]


def test_a_batch_write_without_a_name_is_forgotten_in_time_and_others_are_not(broker: BrokerProcess) -> None:
    put(broker, 1, ["1"])
    stream = WriteOptions.of({"broker": address(broker), "topic": "output"}, streaming=True)
    _commit(stream, [_stage(stream, "spark/query", 0, next(parts(["2"])), before=0)])
    for timeout in ("1h", "1s"):
        plain = BatchSink(
            WriteOptions.of(
                {"broker": address(broker), "topic": "output", "timeout": timeout}, streaming=False
            )
        )
        plain.commit([plain.write(next(parts(["3"])))])
    broker.stop()
    with closing(sqlite3.connect(broker.data / "stafeta.db")) as database:
        done = {name for (name,) in database.execute("SELECT producer FROM done")}
        expiring = dict(database.execute("SELECT producer, expires FROM committed WHERE expires > 0"))
        times = [time for (time,) in database.execute("SELECT expires FROM committed ORDER BY expires")]
    assert len(done) == 4
    assert done - expiring.keys() == {"flight/spark/app#output", "flight/spark/query"}
    assert 3000e6 < times[2] - times[1] < FORGET_AFTER * 1e6 + PATIENCE * 1e6, "2 h and 1 h"


# --- queries


class Query:
    """Copies a topic to another by `foreachBatch`, under one name, whatever its checkpoint."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess) -> None:
        self.broker = broker
        source = spark.readStream.format("stafeta").options(broker=address(broker), subscribe="input")
        self._rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=4).load()
        self.breaks = False  # after each write, before Spark knows of it
        self.value = "payload"
        self.again: str | None = None  # what is written a second time

    def run(self, checkpoint: Path) -> None:
        writer = self._rows.writeStream.foreachBatch(self._copy).option("checkpointLocation", str(checkpoint))
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    def _copy(self, batch: DataFrame, number: int) -> None:
        for value in filter(None, (self.value, self.again)):
            rows = batch.selectExpr(f"{value} AS payload")
            write(rows, self.broker, topic="output", txnAppId="copy", txnVersion=number)
        if self.breaks:
            raise ValueError("written, and not committed by Spark")


def test_a_query_with_a_new_checkpoint_does_not_lose_rows_under_the_old_name(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = Query(spark, broker)
    published(broker, input=numbered(1, 6))
    query.run(tmp_path / "first")
    with connect(broker) as connection:
        connection.publish("input", numbered(7, 12))
    query._rows = query._rows.where("offset > 6")
    with pytest.raises(StreamingQueryException, match=f"Version 1 of 'copy' {OTHER_ROWS}"):
        query.run(tmp_path / "second")
    assert payloads(broker, "output") == numbered(1, 6)
    query.run(tmp_path / "first")
    assert payloads(broker, "output") == numbered(1, 12)


def test_a_micro_batch_may_have_other_rows_when_its_own_query_repeats_it_and_not_when_it_is_written_twice(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = Query(spark, broker)
    published(broker, input=numbered(1, 2))
    query.value = "concat(CAST(payload AS STRING), ' first')"
    query.breaks = True
    with pytest.raises(StreamingQueryException, match="not committed by Spark"):
        query.run(tmp_path / "checkpoint")
    query.breaks = False
    query.value = "concat(CAST(payload AS STRING), ' second')"
    query.run(tmp_path / "checkpoint")
    assert payloads(broker, "output") == ["1 first", "2 first"]
    with connect(broker) as connection:
        connection.publish("input", ["3"])
    query.again = "concat(CAST(payload AS STRING), ' third')"
    with pytest.raises(StreamingQueryException, match=f"Version 1 of 'copy' {OTHER_ROWS}"):
        query.run(tmp_path / "checkpoint")
    assert payloads(broker, "output") == ["1 first", "2 first", "3 second"]
