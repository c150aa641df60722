"""What the broker counts is what has happened: each message once, however it came, and nothing that failed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker
from stafeta.broker.cursor import Cursor
from stafeta.errors import StoreError
from stafeta.message import Kind
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import FailingMemory, FailingSqlite, run
from tests.broker.test_consumer import publish, received


def test_messages_are_counted_as_they_are_published_delivered_and_acknowledged() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        durable, live = broker.consumer("d"), broker.consumer("l")
        durable.subscribe("t", durable=True)
        live.subscribe("#", durable=False)
        await publish(broker, "t=1", "t=2", "t=3")
        assert await received(durable) == await received(live) == ["t=1", "t=2", "t=3"]
        await broker.commit()
        found = broker.figures()
        assert found.stats.messages == 3
        assert found.totals.delivered == 6, "each of the two got each of them"
        assert found.totals.acknowledged == 3, "only a durable subscription acknowledges"
        assert found.totals.redelivered == 0
        await broker.close()

    run(work())


def test_what_a_durable_subscription_is_handed_again_is_counted_so() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("d")
        consumer.subscribe("t", durable=True)
        await publish(broker, "t=1", "t=2", "t=3")
        batches = consumer.take(1 << 20)
        assert batches
        broker.ack(broker.subscription("d", "t"), broker.topic("t"), 1, 2)
        consumer.close()
        await publish(broker, "t=4")
        consumer = broker.consumer("d")
        consumer.resume()
        assert await received(consumer) == ["t=2", "t=3", "t=4"]
        assert broker.totals.delivered == 6
        assert broker.totals.redelivered == 2, "t=2 and t=3, but not t=4"
        await broker.close()

    run(work())


def test_a_get_that_is_repeated_without_an_acknowledgement_is_a_redelivery() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "a/#")
        await publish(broker, "a/x=1", "a/y=2")
        for _ in range(2):
            assert len(await broker.fetch(subscription, None, 1 << 20)) == 2
        broker.ack(subscription, broker.topic("a/x"), 1, 2)
        await broker.fetch(subscription, None, 1 << 20)
        assert (broker.totals.delivered, broker.totals.redelivered) == (5, 3)
        await broker.close()

    run(work())


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8)).map(lambda one: (one[0], one[0] + one[1]))))
def test_acknowledgements_out_of_order_are_counted_once_each(spans: list[tuple[int, int]]) -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "t")
        await publish(broker, *["t=x"] * 40)
        for start, stop in spans:
            broker.ack(subscription, broker.topic("t"), start, stop)
        await broker.commit()
        done = {offset for start, stop in spans for offset in range(start, stop)}
        assert broker.totals.acknowledged == len(done)
        await broker.close()

    run(work())


@given(st.lists(st.integers(1, 40)), st.integers(1, 41))
def test_a_cursor_knows_how_many_are_done_from_an_offset_on(done: list[int], start: int) -> None:
    cursor = Cursor(1)
    for offset in done:
        cursor.ack(((offset, offset + 1),))
    span = cursor.next_pending(start, 50)
    assert span is not None
    assert cursor.done_from(span[1]) == len({offset for offset in done if offset >= span[1]})


def test_what_could_not_be_stored_is_not_counted_as_done() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        subscription = broker.subscribe("c", "t")
        await publish(broker, "t=1", "t=2")
        before = broker.figures()
        store.fails = True
        broker.ack(subscription, broker.topic("t"), 1, 3)
        broker.publish("t", b"3")
        with pytest.raises(StoreError):
            await broker.commit()
        after = broker.figures()
        assert after.totals.failed_commits == 1
        assert after.refusing
        assert (after.totals.acknowledged, after.stats.messages) == (0, 2)
        assert after.totals.commit_seconds.total == before.totals.commit_seconds.total
        store.fails = False
        broker.ack(subscription, broker.topic("t"), 1, 3)
        await broker.commit()
        assert broker.totals.acknowledged == 2
        await broker.close()

    run(work())


def test_retries_that_are_recognised_are_counted() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("c", "t")
        for _ in range(3):
            broker.publish_once("t", b"x", "drawn", 7)
        broker.publish_sequence("t", [b"1", b"2"], "counting", 1)
        broker.publish_sequence("t", [b"1", b"2", b"3"], "counting", 1)
        await broker.commit()
        assert broker.totals.duplicates == 2 + 2
        assert broker.figures().stats.messages == 1 + 3
        await broker.close()

    run(work())


def test_what_is_collected_is_counted_once_it_is_gone_for_good() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        subscription = broker.subscribe("c", "t")
        await publish(broker, *["t=x"] * 5)
        broker.ack(subscription, broker.topic("t"), 1, 4)
        await broker.commit()
        store.fails = True
        with pytest.raises(StoreError):
            await broker.collector.collect()
        assert broker.totals.collected == 0
        store.fails = False
        await broker.collector.collect()
        assert broker.totals.collected == 3
        broker.unsubscribe("c", "t")
        await broker.commit()
        await broker.collector.collect()
        assert broker.totals.collected == 5, "with the topic goes what it held"
        await broker.close()

    run(work())


def test_commits_are_measured_by_size_time_and_sync(tmp_path: Path) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        broker.subscribe("c", "t")
        await broker.commit()
        for count in (1, 50):
            for _ in range(count):
                broker.publish("t", b"x" * 10, Kind.STRING)
            await broker.commit()
        found = broker.figures()
        assert found.totals.commit_messages.sum == 51
        by_bound = dict(
            zip(found.totals.commit_messages.bounds, found.totals.commit_messages.counts, strict=False)
        )
        assert (by_bound[1], by_bound[100]) == (1, 1)
        commits = found.totals.commit_messages.total
        assert found.totals.commit_seconds.total == found.sync_seconds.total == commits == 3
        assert 0 < found.sync_seconds.sum <= found.totals.commit_seconds.sum
        assert found.totals.commit_bytes == 51 * (10 + 64)
        usage = await broker.usage()
        assert usage.database > 0
        assert usage.free > 0
        await broker.close()

    run(work())
