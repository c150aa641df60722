"""Topics as streams: micro-batches, checkpoints, where they begin, and what they tell."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from stafeta.pipeline.connector.source import DefaultSource
from stafeta.pipeline.connector.stream import TopicStream
from tests.brokers import BrokerProcess
from tests.pipeline.queries import Copy, Seen, address, connect, numbered, published, told, waiting
from tests.waiting import wait_until

EIGHT = datetime(2026, 11, 1, 8, tzinfo=UTC)


def stream_reader(broker: BrokerProcess, subscribe: str, **options: str) -> TopicStream:
    """What Spark's driver asks for offsets."""
    source = DefaultSource({"broker": address(broker), "subscribe": subscribe} | options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, TopicStream)
    return reader


def of(topic: str, first: int, last: int) -> list[Seen]:
    return [Seen(topic, number, str(number)) for number in range(first, last + 1)]


def places(offsets: str) -> dict[str, int]:
    """Those of topics, of what a progress tells."""
    return {topic: place for topic, place in json.loads(offsets).items() if isinstance(place, int)}


# --- what is wrong


def test_a_wrong_option_of_a_stream_is_a_sentence(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    with told("There is no option 'maxoffsetpertrigger' for reading; did you mean 'maxOffsetsPerTrigger'?"):
        Copy(spark, broker, tmp_path / "checkpoint", "hall", maxOffsetPerTrigger=5).run()


def test_a_broker_that_is_not_there_ends_the_query_with_a_sentence(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.kill()
    query = Copy(spark, broker, tmp_path / "checkpoint", "hall", timeout="500ms").start()
    with told(f"The broker at {address(broker)} has not answered for 0.5 s"):
        query.awaitTermination(60)
    assert f"The broker at {address(broker)} has not answered" in str(query.exception())


# --- micro-batches


def test_available_now_without_a_limit_is_one_micro_batch(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, hall__a=numbered(1, 50), hall__b=numbered(1, 7))
    copy = Copy(spark, broker, tmp_path / "checkpoint", "hall/+", startingOffsets="earliest")
    copy.run()
    assert copy.sizes == [57]
    assert copy.seen == of("hall/a", 1, 50) + of("hall/b", 1, 7)


def test_micro_batches_are_as_large_as_they_may_be_and_of_all_topics_and_tell_their_offsets(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, a=numbered(1, 60), b=numbered(1, 30), c=numbered(1, 10))

    class Publishing(Copy):
        def take(self, batch: DataFrame, number: int) -> None:
            super().take(batch, number)
            published(broker, a=["later"])  # is not there yet when it starts

    copy = Publishing(
        spark, broker, tmp_path / "checkpoint", "#", startingOffsets="earliest", maxOffsetsPerTrigger=20
    )
    query = copy.run()
    assert copy.sizes == [20] * 5
    assert copy.seen == of("a", 1, 60) + of("b", 1, 30) + of("c", 1, 10)
    counts = [Counter(row.topic for row in rows) for _, rows in copy.batches]
    for topic, due in {"a": 12, "b": 6, "c": 2}.items():
        assert abs(counts[0][topic] - due) <= 1, "in proportion to what waits, and one at least"

    told_of = [progress.sources[0] for progress in query.recentProgress if progress.numInputRows]
    assert [one.numInputRows for one in told_of] == [20] * 5
    place = Counter({"a": 1, "b": 1, "c": 1})
    for number, one in enumerate(told_of):
        if number:
            assert places(one.startOffset) == place
        place += counts[number]
        assert places(one.endOffset) == place
        assert places(one.latestOffset).keys() == {"a", "b", "c"}
        assert places(one.latestOffset)["b"] == 31, "what is left is the lag"


def test_a_query_goes_on_where_its_checkpoint_stands(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, hall__a=numbered(1, 5))
    copy = Copy(spark, broker, tmp_path / "checkpoint", "hall/+", startingOffsets="earliest")
    copy.run()
    published(broker, hall__a=numbered(6, 8), hall__new=numbered(1, 2))
    copy.run(startingOffsets='{"hall/a": 1}')
    copy.run(startingOffsets="latest")
    assert [number for number, _ in copy.batches] == [0, 1]
    assert copy.seen == of("hall/a", 1, 8) + of("hall/new", 1, 2)


def test_topics_that_appear_while_a_query_runs_are_read_from_their_first_message(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, hall__a=numbered(1, 5))
    copy = Copy(spark, broker, tmp_path / "checkpoint", "hall/+,lab")
    with copy.running() as query:
        wait_until(lambda: waiting(query))
        published(broker, hall__a=["6"], hall__b=numbered(1, 3))
        copy.wait_for(4)
        published(broker, hall__c=numbered(1, 2), lab=["1"], other=["1"])
        copy.wait_for(7)
    assert copy.seen == [*of("hall/a", 6, 6), *of("hall/b", 1, 3), *of("hall/c", 1, 2), *of("lab", 1, 1)]


def test_fewer_messages_than_wanted_are_waited_with_for_so_long(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    copy = Copy(spark, broker, tmp_path / "checkpoint", "hall", maxTriggerDelay="2s", **options)
    with copy.running() as query:
        begin = monotonic()
        published(broker, hall=numbered(1, 4))
        copy.wait_for(1)
        assert monotonic() - begin >= 2
        published(broker, hall=numbered(5, 20))
        copy.wait_for(20)
        wait_until(lambda: waiting(query))
    assert copy.sizes == [4, 16]
    published(broker, hall=["21"])
    copy.run(maxTriggerDelay="1h")
    assert copy.sizes == [4, 16, 1], "what is there when it starts is read, however little it is"


def test_enough_messages_are_not_waited_with(broker: BrokerProcess) -> None:
    reader = stream_reader(broker, "hall", minOffsetsPerTrigger="10", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    start = reader.initialOffset()
    published(broker, hall=numbered(1, 9))
    assert reader.latestOffset(start, limit) == start
    assert reader.latestOffset(start, ReadAllAvailable())["hall"] == 10, (
        "a trigger that reads all does not wait"
    )
    published(broker, hall=["10"])
    assert reader.latestOffset(start, limit)["hall"] == 11
    reader.stop()


# --- where it begins


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with two topics, of which each message is a minute younger than the one before."""
    keeping = ("--set", 'topics."#".keep=9000d')
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *keeping, doors=("flight",)) as process:
        with connect(process) as connection:
            for topic, count in (("a", 10), ("b", 5)):
                times = [EIGHT + timedelta(minutes=minute) for minute in range(count)]
                stamps = pa.array(times, pa.timestamp("us", "UTC"))
                connection.publish(topic, pa.table({"payload": numbered(1, count), "timestamp": stamps}))
        yield process


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a": 11, "b": 6}),
        ({"startingOffsets": "latest"}, {"a": 11, "b": 6}),
        ({"startingOffsets": "earliest"}, {"a": 1, "b": 1}),
        ({"startingOffsets": '{"a": 4}'}, {"a": 4, "b": 1}),
        ({"startingOffsets": '{"a": -1, "b": -2}'}, {"a": 11, "b": 1}),
        ({"startingOffsets": '{"a": 5, "new topics": {"a": 1}, "b": "latest"}'}, {"a": 5, "b": 6}),
        ({"startingTimestamp": "2026-11-01T08:03:00Z"}, {"a": 4, "b": 4}),
        ({"startingTimestamp": "2026-11-01T08:07:00Z", "startingOffsets": "earliest"}, {"a": 8, "b": 6}),
        ({"durable": "x"}, {"a": 11, "b": 6}),
        ({"durable": "x", "startingOffsets": "earliest"}, {"a": 1, "b": 1}),
        ({"durable": "x", "startingOffsets": '{"a": 4}'}, {"a": 4, "b": 1}),
        ({"durable": "x", "startingTimestamp": "2026-11-01T08:03:00Z"}, {"a": 4, "b": 4}),
    ],
)
def test_a_new_query_begins_where_the_options_say(
    dated: BrokerProcess, options: dict[str, str], expected: dict[str, int]
) -> None:
    if "durable" in options:
        options = options | {"durable": uuid4().hex}
    reader = stream_reader(dated, "a,b", **options)
    begin = reader.initialOffset()
    assert begin == expected
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert {topic: end[topic] for topic in ("a", "b")} == {"a": 11, "b": 6}
    reader.stop()
