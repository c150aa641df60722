"""Subscriptions of all three kinds, when commits fail, clients go, and memory holds only a part."""

import asyncio
from pathlib import Path

import pytest

from stafeta.broker import Broker, Limits
from stafeta.errors import InvalidMessage, NoSuchTopic, StoreError
from stafeta.testing.memory import MemoryStore
from tests.broker.batches import interleaved
from tests.broker.stores import FailingMemory, FailingSqlite, run
from tests.broker.test_consumer import publish, received


def held(broker: Broker, name: str) -> int:
    topic = broker.topic(name)
    return topic.visible - topic.first


async def fail(broker: Broker, store: FailingMemory | FailingSqlite) -> None:
    store.fails = True
    with pytest.raises(StoreError):
        await broker.commit()
    store.fails = False


def test_what_came_while_nobody_watched_is_read_from_the_store() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=True, persistent=True)
        await publish(broker, "t=1")  # in memory, since it is watched, and never taken
        consumer.close()
        await publish(broker, "t=2", "t=3")
        consumer = broker.consumer("c")
        consumer.resume()
        await publish(broker, "t=4")
        assert await received(consumer) == ["t=1", "t=2", "t=3", "t=4"]

    run(work())


def test_what_only_absent_clients_would_get_is_collected() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False, persistent=True)
        await publish(broker, "t=1")
        assert await received(consumer) == ["t=1"]
        consumer.close()
        await broker.collector.collect()
        for _ in range(3):
            await publish(broker, *["t=x"] * 100)
            await broker.collector.collect()
            assert held(broker, "t") == 0
        await publish(broker, *["t=x"] * 100)
        consumer = broker.consumer("c")
        consumer.resume()
        await broker.collector.collect()
        for _ in range(3):
            await publish(broker, *["t=x"] * 100)
            assert len(await received(consumer)) == 100
            await broker.collector.collect()
            assert held(broker, "t") == 0

    run(work())


def test_a_cursor_made_before_the_messages_below_it_are_durable_moves_on() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("x", "t")
        await publish(broker, "t=1")
        broker.publish("t", b"2")
        subscription = broker.subscribe("y", "t")
        broker.unsubscribe("x", "t")
        await broker.collector.collect()
        await publish(broker, *["t=m"] * 50)
        topic = broker.topic("t")
        broker.ack(subscription, topic, 3, topic.visible)
        await broker.collector.collect()
        assert held(broker, "t") == 0

    run(work())


def test_a_subscription_that_stays_durable_after_all_keeps_its_messages() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=True, persistent=True)
        await publish(broker, "t=1")
        consumer.subscribe("t", durable=False, persistent=True)
        consumer.close()
        await fail(broker, store)
        await publish(broker, "t=2")
        await broker.collector.collect()
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == ["t=1", "t=2"]

    run(work())


@pytest.mark.parametrize("filter_", ["t", "#"])
def test_one_that_stays_durable_after_all_has_its_cursors_again_though_its_client_came_back(
    filter_: str,
) -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        consumer.subscribe(filter_, durable=True, persistent=True)
        await publish(broker, "t=1")
        consumer.subscribe(filter_, durable=False, persistent=True)
        consumer.close()
        consumer = broker.consumer("c")
        consumer.resume()
        broker.publish("t", b"refused")
        await fail(broker, store)
        consumer.close()
        await publish(broker, "t=2")
        await broker.collector.collect()
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == ["t=1", "t=2"]

    run(work())


def test_a_client_that_comes_back_to_messages_that_are_refused_gets_those_that_come_instead() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False, persistent=True)
        await broker.commit()
        consumer.close()
        broker.publish("t", b"refused")
        broker.publish("t", b"refused")
        consumer = broker.consumer("c")
        consumer.resume()
        await fail(broker, store)
        await publish(broker, "t=1", "t=2", "t=3")
        assert await received(consumer) == ["t=1", "t=2", "t=3"]

    run(work())


@pytest.mark.parametrize("ending", ["durable", "ended"])
def test_a_lasting_subscription_that_stays_as_it_was_holds_nothing(ending: str) -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False, persistent=True)
        await broker.commit()
        if ending == "durable":
            consumer.subscribe("t", durable=True, persistent=True)
        else:
            consumer.unsubscribe("t")
        consumer.close()
        await fail(broker, store)
        await publish(broker, "t=1")
        await broker.collector.collect()
        assert held(broker, "t") == 0
        consumer = broker.consumer("c")
        consumer.resume()
        await publish(broker, "t=2")
        assert await received(consumer) == ["t=2"]

    run(work())


def test_a_live_subscription_does_not_come_back_when_its_end_cannot_be_stored() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        broker.subscribe("keeper", "t")
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False)
        await broker.commit()
        broker.publish("t", b"lost")
        consumer.close()
        await fail(broker, store)
        assert list(broker.clients) == ["keeper"]
        consumer = broker.consumer("d")
        consumer.subscribe("t", durable=False)  # made and ended in the commit that fails
        broker.publish("t", b"lost")
        consumer.close()
        await fail(broker, store)
        assert list(broker.clients) == ["keeper"]

    run(work())


def test_a_message_that_is_refused_makes_no_topic() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore(), Limits(max_payload=10))
        with pytest.raises(InvalidMessage):
            broker.publish("big", bytes(11), create=True)
        with pytest.raises(NoSuchTopic):
            broker.topic("big")

    run(work())


def test_a_feed_over_many_topics_with_backlogs_one_after_the_other(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        broker.subscribe("c", "#")
        expected = [f"t/{topic}={at}" for topic in range(100) for at in range(40)]
        await publish(broker, *expected)
        consumer = broker.consumer("c")
        consumer.resume()
        got: list[str] = []
        takes = 0
        while consumer.ready:
            batches = await consumer.read(16 << 10, 1585)
            got += interleaved(batches)
            takes += 1
            await asyncio.sleep(0)
        assert got == expected
        assert takes < 1000, "not one for each message"

    run(work())
