"""Filters, which have cursors only where something came: what they wait for, whatever happens before it comes."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stafeta.broker import Broker, Limits, portions
from stafeta.errors import LimitReached
from stafeta.examination import examine
from stafeta.store.sqlite.folder import DATABASE
from stafeta.testing.memory import MemoryStore
from tests.broker.batches import interleaved
from tests.broker.stores import FailingMemory, FailingSqlite, run
from tests.broker.test_consumer import publish, received
from tests.broker.test_subscriptions import fail
from tests.soundness import assert_sound


def test_a_filter_has_no_cursor_until_something_comes_and_holds_that(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        await publish(broker, "a=before", "b=before")
        subscription = broker.subscribe("c", "#")
        assert not subscription.cursors
        await broker.commit()
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        await publish(broker, "b=1")
        await broker.collector.collect()
        await broker.close()
        assert_sound(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        subscription = broker.subscription("c", "#")
        assert [topic.name for topic in subscription.cursors] == ["b"]
        batches = await broker.fetch(subscription, list(subscription.cursors), 1 << 20)
        assert interleaved(batches) == ["b=1"]
        await broker.close()

    run(work())


def test_what_comes_in_the_group_of_a_subscription_is_held_from_there_on() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.publish("t", b"0", create=True)
        subscription = broker.subscribe("c", "#")
        broker.publish("t", b"1")
        await broker.commit()
        assert interleaved(await broker.fetch(subscription, list(subscription.cursors), 1 << 20)) == ["t=1"]

    run(work())


def test_a_device_that_comes_back_gets_what_comes_then() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=False, persistent=True)
        await publish(broker, "a=1", "b=1")
        assert await received(consumer) == ["a=1", "b=1"]
        consumer.close()
        await publish(broker, "a=2", "c=2")
        consumer = broker.consumer("c")
        consumer.resume()
        await publish(broker, "b=3", "a=3", "c=3")
        assert await received(consumer) == ["b=3", "a=3", "c=3"]

    run(work())


@pytest.mark.parametrize("failing", [False, True])
def test_one_that_becomes_durable_has_cursors_only_where_something_waits(
    failing: bool, tmp_path: Path
) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        subscription = consumer.subscribe("#", durable=False, persistent=True)
        await publish(broker, "a=1", "b=1")
        assert await received(consumer) == ["a=1", "b=1"]
        await publish(broker, "c=1")
        if failing:
            consumer.subscribe("#", durable=True, persistent=True)
            await fail(broker, store)
            assert not subscription.durable
            await publish(broker, "a=2")
            assert await received(consumer) == ["c=1", "a=2"]
            await publish(broker, "c=2")
        consumer.subscribe("#", durable=True, persistent=True)
        assert [topic.name for topic in subscription.cursors] == ["c"]
        await broker.commit()
        await publish(broker, "b=3", "b=4")
        await broker.collector.collect()
        store.crash()
        broker = await Broker.open(FailingSqlite(tmp_path))
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == ["c=2" if failing else "c=1", "b=3", "b=4"]
        await broker.close()
        assert_sound(tmp_path)

    run(work())


def test_a_change_that_fails_leaves_a_filter_its_place_also_if_its_client_came_back() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=True, persistent=True)
        await publish(broker, "t=1")
        consumer.subscribe("#", durable=False, persistent=True)
        consumer.close()
        broker.consumer("c").resume()
        await fail(broker, store)
        subscription = broker.subscription("c", "#")
        assert interleaved(await broker.fetch(subscription, list(subscription.cursors), 1 << 20)) == ["t=1"]

    run(work())


def test_filters_that_have_ended_count_until_their_topics_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)

    async def work() -> None:
        broker = await Broker.open(MemoryStore(), Limits(max_subscriptions=5))
        broker.subscribe("other", "#")
        await publish(broker, *[f"t/{number}=1" for number in range(50)])
        for _ in range(4):
            broker.subscribe("c", "#", durable=False)
            broker.unsubscribe("c", "#")
        with pytest.raises(
            LimitReached, match=r"1 subscriptions, and 4 that begin or end.*max_subscriptions"
        ):
            broker.subscribe("c", "#", durable=False)
        for _ in range(1000):
            await asyncio.sleep(0)
        broker.subscribe("c", "#", durable=False)
        await broker.close()

    run(work())


def test_what_ended_is_let_go_of_in_portions_and_says_nothing_of_what_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it is forgotten how far a consumer was, the client has subscribed again, and has no lag."""
    monkeypatch.setattr(portions, "PORTION", 1)
    names = [f"t/{number}" for number in range(50)]

    async def work() -> None:
        broker = await Broker.open(MemoryStore(), Limits(max_lag=10))
        broker.subscribe("other", "#")
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=False)
        await publish(broker, *[f"{name}=1" for name in names])
        assert len(await received(consumer)) == 50
        consumer.unsubscribe("#")
        for name in names:
            for _ in range(20):
                broker.publish(name, b"missed")
        consumer.subscribe("#", durable=False)
        await publish(broker, *[f"{name}=2" for name in names])
        assert consumer.lagging is None
        got: list[str] = []
        while len(got) < 50:
            got += interleaved(await consumer.read(1 << 20))
            await asyncio.sleep(0)
        assert got == [f"{name}=2" for name in names]

    run(work())


def test_a_client_that_comes_does_not_wait_until_all_of_an_ended_filter_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("other", "#")
        broker.subscribe("c", "t/1")
        await publish(broker, *[f"t/{number}=1" for number in range(100)])
        broker.subscribe("ended", "#")
        broker.unsubscribe("ended", "#")
        await broker.commit()
        consumer = broker.consumer("c")
        consumer.resume()
        turns = 0
        while consumer.joining:
            await asyncio.sleep(0)
            turns += 1
        assert turns < 10
        assert broker.registry.portions._work
        assert await received(consumer) == ["t/1=1"]

    run(work())


def test_one_that_begins_with_the_earliest_is_completed_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)
    names = [f"t/{number}" for number in range(5)]

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        broker.subscribe("other", "#")
        await publish(broker, *[f"{name}=1" for name in names])
        subscription = broker.subscribe("c", "#", earliest=True)
        await broker.commit()
        broker.registry.begin_portion(subscription)
        await broker.commit()
        assert subscription.beginning
        assert len(subscription.cursors) < 5
        store.crash()
        assert_sound(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        subscription = broker.subscription("c", "#")
        assert not subscription.beginning
        found = await broker.fetch(subscription, list(subscription.cursors), 1 << 20)
        assert interleaved(found) == [f"{name}=1" for name in names]
        await broker.close()

    run(work())
    assert_sound(tmp_path)


def test_what_is_acknowledged_while_one_begins_with_the_earliest_does_not_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("other", "#")
        await publish(broker, "a=1", "b=1", "c=1")
        subscription = broker.subscribe("c", "#", earliest=True)
        assert len(subscription.cursors) == 1
        for name in "abc":
            broker.ack(subscription, broker.topic(name), 1, 2)
        await broker.begun(subscription)
        assert not await broker.fetch(subscription, list(subscription.cursors), 1 << 20)
        await broker.close()

    run(work())


def test_one_that_begins_with_the_earliest_and_becomes_live_begins_with_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)

    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        broker.subscribe("other", "#")
        await publish(broker, "a=1", "b=1", "c=1")
        subscription = broker.subscribe("c", "#", earliest=True)
        await broker.commit()
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=False, persistent=True)
        consumer.close()
        broker.consumer("c").resume()
        await fail(broker, store)
        await broker.begun(subscription)  # it is as it was, and goes on
        assert len(subscription.cursors) == 3
        consumer = broker.consumer("d")
        broker.subscribe("d", "#", earliest=True)
        consumer.subscribe("#", durable=False, persistent=True)
        consumer.close()
        consumer = broker.consumer("d")
        consumer.resume()
        for topic in broker.topics.values():  # or the filter would get what is there
            broker.registry.begin_with(topic)
        await publish(broker, "b=2")
        while consumer.joining:  # noqa: ASYNC110 - it is a test
            await asyncio.sleep(0)
        assert await received(consumer) == ["b=2"]

    run(work())


def test_check_finds_a_cursor_that_a_filter_should_have(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "#")
        await publish(broker, "t=1")
        await broker.close()

    run(work())
    assert_sound(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("DELETE FROM cursor")
    database.close()
    report, _ = examine(tmp_path)
    assert [finding.sentence for finding in report.findings] == [
        "Client 'c' has no cursor on 't' for its filter '#', to which messages came since it subscribed."
    ]
