"""Batch reads when messages are gone, the broker is killed, or is not there."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.errors import DataLoss
from stafeta.pipeline.connector.batch_reader import TopicReader
from stafeta.pipeline.connector.planning import Range, Task
from stafeta.pipeline.connector.source import DefaultSource
from tests.brokers import BrokerProcess
from tests.pipeline.queries import (
    address,
    connect,
    dropped,
    forgetful,
    in_background,
    numbered,
    published,
    read,
    seen,
    told,
)
from tests.waiting import wait_until

__all__ = ["forgetful"]  # a fixture

LARGE = "x" * 100_000  # more than fits between broker and task
ROWS = 300


def reader(broker: BrokerProcess, **options: str) -> TopicReader:
    """What Spark's planner and its tasks ask for the topic `hall`."""
    source = DefaultSource({"broker": address(broker), "subscribe": "hall"} | options)
    return source.reader(source.schema())


# --- messages that are gone


def test_messages_that_go_between_planning_and_reading_are_told(
    spark: SparkSession, forgetful: BrokerProcess
) -> None:
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 10))
        planned = read(spark, forgetful, "hall").rdd
        tolerant = read(spark, forgetful, "hall", failOnDataLoss=False).rdd
        assert planned.getNumPartitions() == tolerant.getNumPartitions() == 1
        dropped(connection, "hall", 4)
    with told("3 of the messages 1 to 10 of topic 'hall' are gone before they were read."):
        planned.collect()
    assert [(row.offset, row.payload) for row in seen(tolerant.collect())] == [
        (number, str(number)) for number in range(4, 11)
    ]


def test_a_topic_that_goes_between_planning_and_reading_is_told(forgetful: BrokerProcess) -> None:
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 10))
        strict, tolerant = (reader(forgetful, failOnDataLoss=fail) for fail in ("true", "false"))
        (task,) = strict.partitions()
        connection.unsubscribe("hall", name="somebody")
        wait_until(lambda: not connection.topics("hall"))
    with pytest.raises(DataLoss, match="10 of the messages 1 to 10 of topic 'hall' are gone"):
        list(strict.read(task))
    assert list(tolerant.read(task)) == []


def test_offsets_that_are_asked_for_and_gone_are_told(spark: SparkSession, forgetful: BrokerProcess) -> None:
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 10))
        dropped(connection, "hall", 5)
    with told("2 of the messages 3 to 10 of topic 'hall' are gone"):
        read(spark, forgetful, "hall", startingOffsets='{"hall": 3}').collect()
    rows = read(spark, forgetful, "hall", startingOffsets='{"hall": 3}', failOnDataLoss=False)
    assert [row.offset for row in seen(rows)] == [5, 6, 7, 8, 9, 10]
    assert [row.offset for row in seen(read(spark, forgetful, "hall"))] == [5, 6, 7, 8, 9, 10], (
        "earliest is what is there"
    )


def test_an_end_that_is_not_reached_is_passed_over_if_that_is_wanted(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with connect(broker) as connection:
        connection.publish("hall", numbered(1, 3))
    options = {"endingOffsets": '{"hall": 9}'}
    with told("The option 'endingOffsets' asks for topic 'hall' up to 9; it ends at 4."):
        read(spark, broker, "hall", **options).collect()
    assert len(seen(read(spark, broker, "hall", failOnDataLoss=False, **options))) == 3


# --- the broker


def held_up(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Says that rows are there, and passes on none until it may."""
    for batch in batches:
        (folder / "begun").touch()
        wait_until((folder / "go on").exists)
        yield pa.record_batch({"offset": batch.column("offset")})


def kill_and_start(broker: BrokerProcess, folder: Path) -> None:
    """Kills the broker once rows are there, lets the other tasks find none, and starts it again."""
    try:
        wait_until((folder / "begun").exists)
        broker.kill()
    finally:
        (folder / "go on").touch()
    broker.start()


def test_a_broker_that_is_killed_in_mid_read_is_waited_for_by_the_tasks(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, hall=numbered(1, 1000))
    rows = read(spark, broker, "hall", maxRecordsPerPartition=200)
    rows = rows.mapInArrow(lambda batches: held_up(tmp_path, batches), "offset long")
    with in_background(lambda: kill_and_start(broker, tmp_path)):
        found = [row.offset for row in rows.collect()]
    assert found == list(range(1, 1001))


def test_a_stream_that_breaks_goes_on_after_the_last_row(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    published(broker, hall=[number.ljust(len(LARGE)) for number in numbered(1, ROWS)])
    strict = reader(broker, batchRows="10")
    found: list[tuple[int, int]] = []
    for task in strict.partitions():
        for batch in strict.read(task):
            if not found:
                broker.restart()
            found += [(row["offset"], int(row["payload"])) for row in batch.to_pylist()]
    assert found == [(number, number) for number in range(1, ROWS + 1)]
    assert "Trying again" in caplog.text, "it has read everything before"


@pytest.mark.parametrize("together", [False, True])
def test_a_stream_of_several_topics_that_breaks_goes_on_after_the_last_row(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, together: bool
) -> None:
    payloads = [number.ljust(len(LARGE)) for number in numbered(1, ROWS // 3)]
    published(broker, **dict.fromkeys(("a", "b", "c"), payloads))
    strict = reader(broker, subscribe="#", batchRows="10")
    found: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    task = Task(tuple(Range(topic, 1, ROWS // 3 + 1) for topic in found), together=together)
    for batch in strict.read(task):
        if len(found["b"]) == 10:
            broker.restart()
        for row in batch.to_pylist():
            found[row["topic"]].append(row["offset"])
            assert row["offset"] == int(row["payload"])
    assert found == {topic: list(range(1, ROWS // 3 + 1)) for topic in "abc"}
    assert "Trying again" in caplog.text, "it has read everything before"


def test_of_several_topics_what_is_gone_of_one_is_told(forgetful: BrokerProcess) -> None:
    with connect(forgetful) as connection:
        for topic in ("a", "b", "c"):
            connection.hold(topic, name="somebody")
            connection.publish(topic, numbered(1, 10))
        strict, tolerant = (
            reader(forgetful, subscribe="#", failOnDataLoss=fail) for fail in ("true", "false")
        )
        (task,) = strict.partitions()
        assert isinstance(task, Task)
        dropped(connection, "b", 4)
        connection.unsubscribe("c", name="somebody")
        wait_until(lambda: not connection.topics("c"))
    expected = [("a", offset) for offset in range(1, 11)] + [("b", offset) for offset in range(4, 11)]
    for one in (task, Task(task.ranges, together=not task.together)):
        with pytest.raises(DataLoss, match="3 of the messages 1 to 10 of topic 'b' are gone"):
            list(strict.read(one))
        rows = [row for batch in tolerant.read(one) for row in batch.to_pylist()]
        assert [(row["topic"], row["offset"]) for row in rows] == expected


def test_offsets_are_true_also_where_messages_have_gone_while_the_broker_was_away(
    forgetful: BrokerProcess,
) -> None:
    tolerant = reader(forgetful, batchRows="10", failOnDataLoss="false")
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", [number.ljust(len(LARGE)) for number in numbered(1, ROWS)])
        found: list[tuple[int, int]] = []
        for task in tolerant.partitions():
            for batch in tolerant.read(task):
                if not found:
                    dropped(connection, "hall", ROWS - 5)
                    forgetful.restart()
                found += [(row["offset"], int(row["payload"])) for row in batch.to_pylist()]
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert offsets == [payload for _, payload in found]
    assert offsets[-6:] == list(range(ROWS - 5, ROWS + 1))
    assert len(offsets) < ROWS, "nothing has gone"


def test_a_broker_that_is_not_there_is_a_sentence_within_seconds(spark: SparkSession) -> None:
    with socket.socket() as taken:  # bound, and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        place = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        reader = spark.read.format("stafeta").option("subscribe", "hall").option("broker", place)
        begin = time.monotonic()
        with told(f"The broker at {place} has not answered for 1 s"):
            reader.option("timeout", "1s").load().collect()
        assert time.monotonic() - begin < 60


def test_a_broker_that_goes_between_planning_and_reading_is_a_sentence(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with connect(broker) as connection:
        connection.publish("hall", numbered(1, 3))
    planned = read(spark, broker, "hall", timeout="500ms").rdd
    assert planned.getNumPartitions() == 1
    broker.kill()
    with told("has not answered for 0.5 s"):
        planned.collect()
