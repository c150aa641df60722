"""Streams that go by the clock: offsets that say when the topics were looked at, and micro-batches without messages."""

import time

from stafeta.pipeline.connector.options import LOOKED, ReadOptions
from stafeta.pipeline.connector.spark_schema import schema_of
from stafeta.pipeline.connector.stream import Offsets, TopicStream
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, published


def stream(broker: BrokerProcess, **options: str) -> TopicStream:
    given = {"broker": address(broker), "subscribe": "#", "startingOffsets": "earliest"} | options
    return TopicStream(ReadOptions.of(given, streaming=True), schema_of(("topic",), decode=False))


def latest(one: TopicStream, start: Offsets) -> Offsets:
    return one.latestOffset(start, one.getDefaultReadLimit())


def topics(offsets: Offsets) -> Offsets:
    return {name: offset for name, offset in offsets.items() if " " not in name}


def test_a_query_that_reads_what_is_there_ends_with_one_micro_batch_without_messages(
    broker: BrokerProcess,
) -> None:
    published(broker, a=["1"], b=["1", "2"])
    end: Offsets = {}
    for expected in ({"a": 2, "b": 3}, {"a": 3, "b": 3}):
        one = stream(broker, idleTrigger="1h")
        start = end or one.initialOffset()
        one.prepareForTriggerAvailableNow()
        looked = time.time_ns() // 1000
        published(broker, a=["later"])
        start = latest(one, start)
        assert topics(start) == expected
        assert int(start[LOOKED]) <= looked, "what came since is not in it"
        end = latest(one, start)
        assert (topics(end), int(end[LOOKED])) == (expected, int(start[LOOKED]) + 1)
        assert one.partitions(start, end) == []
        assert latest(one, end) == end, "there is no other"
        one.stop()


def test_while_nothing_comes_there_are_some_until_it_has_been_long_enough(broker: BrokerProcess) -> None:
    one = stream(broker, idleTrigger="0s", idleTriggerFor="0s")
    start = one.initialOffset()
    assert latest(one, start) == start, "nothing was read yet"
    published(broker, a=["1"])
    start = latest(one, start)
    end = latest(one, start)
    assert (topics(end), int(end[LOOKED]) > int(start[LOOKED])) == ({"a": 2}, True)
    assert latest(one, end) == end, "it has been long enough"
    published(broker, a=["2"])
    start = latest(one, end)
    assert topics(start) == {"a": 3}
    assert topics(latest(one, start)) == {"a": 3} != start, "and again, after a message"
    one.stop()


def test_a_micro_batch_that_leaves_topics_out_says_nothing_of_them(broker: BrokerProcess) -> None:
    published(broker, a=["1"], b=["1"])
    one = stream(broker, idleTrigger="1h", maxOffsetsPerTrigger="1")
    first = latest(one, one.initialOffset())
    assert LOOKED not in first
    assert LOOKED in latest(one, first)
    one.stop()


def test_a_stream_that_does_not_ask_for_it_has_none(broker: BrokerProcess) -> None:
    published(broker, a=["1"])
    one = stream(broker)
    end = latest(one, one.initialOffset())
    assert topics(end) == {"a": 2}
    assert LOOKED not in end
    assert latest(one, end) == end
    with connect(broker) as connection:
        assert not connection.subscriptions()
    one.stop()
