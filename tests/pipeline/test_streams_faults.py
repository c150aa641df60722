"""Streams that fail and are started again; brokers that are killed; messages that are gone."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from stafeta.errors import DataLoss
from stafeta.pipeline.connector.planning import Task
from tests.brokers import BrokerProcess
from tests.pipeline.queries import (
    Copy,
    connect,
    dropped,
    forgetful,
    in_background,
    numbered,
    published,
    told,
    waiting,
)
from tests.pipeline.test_streams import of, stream_reader
from tests.waiting import wait_until

__all__ = ["forgetful"]  # a fixture


class Failing(Copy):
    """Fails once, in the first micro-batch."""

    failed = False

    def take(self, batch: DataFrame, number: int) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("the first micro-batch fails")
        super().take(batch, number)


def offsets(copy: Copy) -> list[list[int]]:
    """Of each micro-batch."""
    return [sorted(row.offset for row in rows) for _, rows in copy.batches]


@pytest.mark.parametrize("durable", [False, True])
def test_a_query_that_fails_in_its_first_micro_batch_begins_where_it_did(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, durable: bool
) -> None:
    published(broker, hall=numbered(1, 5), lab=numbered(1, 2))
    options = {"durable": "query"} if durable else {}
    copy = Failing(spark, broker, tmp_path / "checkpoint", "#", startingOffsets="latest", **options)
    with pytest.raises(StreamingQueryException, match="the first micro-batch fails"):
        copy.run()
    published(broker, hall=numbered(6, 8), lab=["3"], new=["1"])
    copy.run()
    assert copy.seen == [*of("hall", 6, 8), *of("lab", 3, 3), *of("new", 1, 1)]


def test_a_first_micro_batch_has_the_same_rows_whenever_it_is_planned(broker: BrokerProcess) -> None:
    published(broker, hall=numbered(1, 5), lab=numbered(1, 2))
    before = stream_reader(broker, "hall,lab,new", startingOffsets="latest")
    start = before.initialOffset()
    published(broker, hall=numbered(6, 8), new=["1"])
    end = before.latestOffset(start, ReadAllAvailable())
    before.stop()
    published(broker, hall=numbered(9, 10), lab=["3"], new=["2"])
    after = stream_reader(broker, "hall,lab,new", startingOffsets="latest")
    again = after.initialOffset()
    assert again != start
    for one in (start, again):
        tasks = [task for task in after.partitions(one, end) if isinstance(task, Task)]
        assert sorted(range_ for task in tasks for range_ in task.ranges) == [("hall", 6, 9), ("new", 1, 2)]
    later = after.latestOffset(end, ReadAllAvailable())
    tasks = [task for task in after.partitions(end, later) if isinstance(task, Task)]
    assert sorted(range_ for task in tasks for range_ in task.ranges) == [
        ("hall", 9, 11),
        ("lab", 3, 4),
        ("new", 2, 3),
    ]
    after.stop()


def test_a_topic_that_was_removed_and_made_again_is_read_on(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    copy = Copy(spark, forgetful, tmp_path / "checkpoint", "hall", startingOffsets="earliest")
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 5))
        copy.run()
        connection.unsubscribe("hall", name="somebody")
        wait_until(lambda: not connection.topics("hall"))
        copy.run()
        connection.hold("hall", name="another")
        connection.publish("hall", numbered(6, 7))
        copy.run()
    assert offsets(copy) == [[1, 2, 3, 4, 5], [6, 7]]


@pytest.mark.parametrize("durable", [False, True])
def test_a_log_that_was_replaced_is_told_or_read_from_its_beginning(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path, durable: bool
) -> None:
    options = {"durable": "query"} if durable else {}
    copy = Copy(spark, forgetful, tmp_path / "checkpoint", "hall", startingOffsets="earliest", **options)

    def publish(count: int) -> None:
        with connect(forgetful) as connection:
            connection.hold("hall", name="query" if durable else "somebody", start="earliest")
            connection.publish("hall", numbered(1, count))

    publish(5)
    copy.run()
    forgetful.stop()
    shutil.rmtree(forgetful.data)
    forgetful.start()
    publish(3)
    with told(
        "Topic 'hall' ends at offset 4, but the query has read it up to 6: the broker's log is another one"
    ):
        copy.run()
    copy.run(failOnDataLoss=False)
    assert offsets(copy) == [[1, 2, 3, 4, 5], [1, 2, 3]]


@pytest.mark.parametrize("more", [0, 2])
def test_messages_that_went_before_the_query_came_back_are_told_or_passed_over(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path, more: int
) -> None:
    copy = Copy(spark, forgetful, tmp_path / "checkpoint", "hall", startingOffsets="earliest")
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 3))
        copy.run()
        connection.publish("hall", numbered(4, 9))
        dropped(connection, "hall", 10)
        if more:
            connection.publish("hall", numbered(10, 9 + more))
        with told("6 of the messages 4 to "):
            copy.run()
        copy.run(failOnDataLoss=False)
        assert offsets(copy) == [[1, 2, 3], [10, 11]][: 2 if more else 1]


def test_messages_that_go_while_available_now_is_on_its_way_are_told_or_passed_over(
    forgetful: BrokerProcess,
) -> None:
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody")
        connection.publish("hall", numbered(1, 5))
        strict, tolerant = (
            stream_reader(forgetful, "hall", failOnDataLoss=fail, **limit) for fail in ("true", "false")
        )
        start = {"hall": 3}
        for reader in (strict, tolerant):
            reader.prepareForTriggerAvailableNow()
        connection.publish("hall", numbered(6, 9))
        dropped(connection, "hall", 8)
    assert tolerant.latestOffset(start, ReadMaxRows(2)) == start, "what came later is not for this run"
    with pytest.raises(DataLoss, match="messages 3 to 7 of topic 'hall' are gone"):
        strict.latestOffset(start, ReadMaxRows(2))
    for reader in (strict, tolerant):
        reader.stop()


def test_a_broker_that_is_killed_in_mid_query_is_waited_for(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    class Killing(Copy):
        def take(self, batch: DataFrame, number: int) -> None:
            if number != 1:
                super().take(batch, number)
                return
            broker.kill()
            with in_background(broker.start):  # the task finds no broker, and waits
                super().take(batch, number)

    copy = Killing(spark, broker, tmp_path / "checkpoint", "hall", startingOffsets="earliest")
    published(broker, hall=numbered(1, 5))
    with copy.running() as query:
        copy.wait_for(5)
        wait_until(lambda: waiting(query))
        broker.restart()  # the driver finds none
        published(broker, hall=numbered(6, 9))
        copy.wait_for(9)
        published(broker, hall=["10"])
        copy.wait_for(10)
        assert query.exception() is None
    assert [row.offset for row in copy.seen] == list(range(1, 11))


def test_a_query_that_is_stopped_and_started_in_any_moment_reads_each_message_once_committed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, a=numbered(1, 12), b=numbered(1, 6))

    class Stopping(Copy):
        def take(self, batch: DataFrame, number: int) -> None:
            if number not in dict(self.batches) and number in (1, 3):
                self.batches.append((number, batch.collect()))
                raise ValueError("stopped here")
            super().take(batch, number)

    copy = Stopping(
        spark, broker, tmp_path / "checkpoint", "#", startingOffsets="earliest", maxOffsetsPerTrigger=4
    )
    for _ in range(3):
        with suppress(StreamingQueryException):
            copy.run()
    replayed = dict(copy.batches)
    for number, rows in copy.batches:
        assert sorted(map(tuple, rows)) == sorted(map(tuple, replayed[number])), "a replay reads the same"
    found = sorted((row.topic, row.offset) for rows in replayed.values() for row in rows)
    assert found == [("a", n) for n in range(1, 13)] + [("b", n) for n in range(1, 7)]
