"""Rules of the broker that the model does not tell: live subscriptions, retention, removal, sessions, limits."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from stafeta.broker import Broker, Limits, Retention
from stafeta.errors import (
    AlreadyConnected,
    BrokerClosed,
    InvalidMessage,
    InvalidName,
    LimitReached,
    NoSuchOffset,
    NoSuchTopic,
    StoreFull,
)
from stafeta.store.port import Group
from tests.broker.batches import texts
from tests.broker.stores import FailingMemory, FailingSqlite, run


def test_a_live_subscription_can_become_durable(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "t", durable=False)
        broker.publish("t", b"1")
        await broker.commit()
        broker.subscribe("c", "t", durable=True)
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        subscription = broker.subscription("c", "t")
        assert texts(await broker.fetch(subscription, list(subscription.cursors), 100)) == ["t=1"]
        await broker.close()

    run(work())


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(messages=3), 3),
        (Retention(size=30), 3),
        (Retention(age=3_600_000_000), 10),
        (Retention(age=0), 0),
        (Retention(age=3_600_000_000, messages=2), 2),
    ],
)
def test_retention_keeps_what_it_says_and_no_more(tmp_path: Path, retention: Retention, kept: int) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), retention=lambda name: retention)
        for at in range(10):
            broker.publish("t", b"%010d" % at, create=True)
            await broker.commit()
        await asyncio.sleep(0.002)
        await broker.collector.collect()
        topic = broker.topics["t"]
        assert topic.next - topic.first == kept
        assert topic.exists is bool(kept)
        read = await broker.read(topic, 1, 1 << 20)
        assert sum(batch.count for batch in read) == kept
        await broker.close()

    run(work())


def test_retention_does_not_take_what_a_subscriber_waits_for(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), retention=lambda name: Retention(messages=1))
        subscription = broker.subscribe("c", "t")
        for at in range(5):
            broker.publish("t", b"%d" % at)
        await broker.commit()
        await broker.collector.collect()
        assert len(texts(await broker.fetch(subscription, list(subscription.cursors), 100))) == 5
        broker.unsubscribe("c", "t")
        await broker.commit()
        await broker.collector.collect()
        assert broker.topic("t").first == 5
        await broker.close()

    run(work())


def test_offsets_go_on_when_a_topic_comes_back(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "t")
        assert [broker.publish("t", b"x") for _ in range(3)] == [1, 2, 3]
        broker.unsubscribe("c", "t")
        await broker.commit()
        with pytest.raises(NoSuchTopic):
            broker.publish("t", b"x")
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "t")
        assert broker.publish("t", b"x") == 4
        await broker.close()

    run(work())


def test_a_topic_that_keeps_its_last_value_keeps_just_that(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.registry.topic_for("t", create=True).keeps_last = True
        for at in range(5):
            broker.publish("t", b"%d" % at)
        await broker.commit()
        await broker.collector.collect()
        assert texts(await broker.read(broker.topic("t"), 1, 100)) == ["t=4"]
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert texts(await broker.read(broker.topic("t"), 1, 100)) == ["t=4"]
        await broker.close()

    run(work())


def test_everyone_in_a_failed_group_is_told_and_the_next_one_works() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        broker.subscribe("c", "t")
        await broker.commit()
        store.fails = True
        broker.publish("t", b"lost")
        first = broker.commit()
        await asyncio.sleep(0)  # the first group is on its way; this joins the next
        broker.publish("t", b"lost too")
        second = broker.commit()
        for commit in (first, second):
            with pytest.raises(StoreFull):
                await commit
        store.fails = False
        assert broker.publish("t", b"kept") == 1
        await broker.commit()
        subscription = broker.subscription("c", "t")
        assert texts(await broker.fetch(subscription, list(subscription.cursors), 100)) == ["t=kept"]

    run(work())


class Refusing(FailingMemory):
    """Raises at once, before there is anything to wait for."""

    def commit(self, group: Group) -> Awaitable[None]:  # type: ignore[override]
        if self.fails:
            raise StoreFull("No room is left.")
        return super().commit(group)


def test_a_store_that_refuses_at_once_keeps_nobody_waiting() -> None:
    async def work() -> None:
        store = Refusing()
        broker = await Broker.open(store)
        broker.subscribe("c", "t")
        await broker.commit()
        store.fails = True
        heard: list[object] = []
        broker.publish("t", b"lost")
        broker.answer(heard.append)
        with pytest.raises(StoreFull):
            await broker.commit()
        assert [type(error) for error in heard] == [StoreFull]
        store.fails = False
        assert broker.publish("t", b"kept") == 1
        await broker.commit()
        await broker.close()

    run(work())


def test_answers_come_in_the_order_in_which_they_were_asked_for() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        broker.subscribe("c", "t", durable=True)
        await broker.commit()
        heard: list[str] = []
        broker.publish("t", b"a")
        broker.answer(lambda error: heard.append("stored"))
        broker.answer(lambda error: 1 // 0)  # is logged, and keeps nobody from hearing
        stored = broker.commit()
        await asyncio.sleep(0)  # that group is on its way; this joins the next
        assert not broker.group.asked
        broker.answer(lambda error: heard.append("nothing to store"))
        await asyncio.wait([broker.commit()])
        assert stored.done()
        assert heard == ["stored", "nothing to store"]
        await broker.close()

    run(work())


def test_nothing_is_seen_before_it_is_durable() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        subscription = broker.subscribe("c", "t")
        await broker.commit()
        broker.publish("t", b"x")
        topics = list(subscription.cursors)
        assert await broker.fetch(subscription, topics, 100) == []
        with pytest.raises(NoSuchOffset):
            broker.ack(subscription, topics[0], 1, 2)
        await broker.commit()
        assert texts(await broker.fetch(subscription, topics, 100)) == ["t=x"]

    run(work())


def test_limits_have_names_and_lose_nothing() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_payload=4, max_topics=2, max_subscriptions=3))
        broker.subscribe("c", "t")
        with pytest.raises(InvalidMessage, match=r"5 bytes long; at most 4.*max_payload"):
            broker.publish("t", b"12345")
        assert broker.publish("t", b"1234") == 1
        broker.subscribe("c", "u")
        with pytest.raises(LimitReached, match="max_topics"):
            broker.subscribe("c", "v")
        broker.subscribe("c", "#")
        with pytest.raises(LimitReached, match="max_subscriptions"):
            broker.subscribe("d", "t")
        with pytest.raises(InvalidName):
            broker.publish("a b", b"x", create=True)
        await broker.commit()
        assert set(broker.topics) == {"t", "u"}

    run(work())


def test_one_connection_a_client_id() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        one, two = object(), object()
        broker.sessions.open("c", one)
        broker.sessions.open("c", one)
        with pytest.raises(AlreadyConnected):
            broker.sessions.open("c", two)
        broker.sessions.close("c", two)
        with pytest.raises(AlreadyConnected):
            broker.sessions.open("c", two)
        broker.sessions.close("c", one)
        broker.sessions.open("c", two)

    run(work())


def test_a_broker_that_is_closed_takes_nothing_new() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        await broker.close()
        with pytest.raises(BrokerClosed):
            broker.subscribe("c", "t")

    run(work())


def test_client_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def work() -> list[int]:
        broker = await Broker.open(FailingSqlite(tmp_path))
        ids = [broker.new_client() for _ in range(3)]
        broker.subscribe(str(ids[-1] + 1), "t")
        ids.append(broker.new_client())
        await broker.close()
        return ids

    assert run(work()) == [1, 2, 3, 5]
    assert run(work()) == [6, 7, 8, 10]


def test_whoever_has_too_many_gaps_can_still_close_them() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        subscription = broker.subscribe("c", "t")
        for _ in range(30):
            broker.publish("t", b"x")
        await broker.commit()
        topic = broker.topic("t")
        broker.ack_all(subscription, topic, [(offset, offset + 1) for offset in range(2, 22, 2)])
        broker.reconfigure(Limits(max_gaps=5), lambda name: None)
        with pytest.raises(LimitReached, match="Acknowledge those from 1 on first"):
            broker.ack(subscription, topic, 25, 26)
        assert subscription.cursors[topic].gaps == 10
        for offset in (9, 3, 1):
            broker.ack(subscription, topic, offset, offset + 1)
        assert subscription.cursors[topic].gaps == 7
        await broker.close()

    run(work())


@pytest.mark.parametrize("name", ["$sys/x", "$sys/pipeline/x"])
def test_what_is_the_brokers_own_is_not_published_to(name: str) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        with pytest.raises(InvalidName, match="the broker's own"):
            broker.publish(name, b"x", create=True)
        assert name not in broker.topics
        broker.subscribe("c", name)
        for publish in (
            lambda: broker.publish(name, b"x"),
            lambda: broker.publish_once(name, b"x", "p", 1),
            lambda: broker.publish_sequence(name, [b"x"], "p", 1),
        ):
            with pytest.raises(InvalidName, match="the broker's own"):
                publish()
        assert broker.publish_all([(name, 3, b"x", "")]) == 1
        await broker.close()

    run(work())


def test_positions_of_messages_that_were_not_stored_are_told_to_nobody(tmp_path: Path) -> None:
    async def life() -> None:
        store = FailingSqlite(tmp_path)
        broker = await Broker.open(store)
        broker.subscribe("keeper", "t")
        broker.publish("t", b"stored")
        await broker.commit()
        store.fails = True
        for _ in range(5):
            broker.publish("t", b"refused")
        with pytest.raises(StoreFull):
            await broker.commit()
        store.fails = False
        wildcard = broker.subscribe("reader", "#")
        await broker.commit()
        behind, mark = wildcard.start, broker.runs.mark(broker.visible_position - 1)
        await broker.collector.stop()
        store.crash()
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.runs.check(mark)
        assert broker.commits.position > behind, "else a reader takes what comes for what it has got"
        await broker.close()

    run(life())
