"""Cursors that are moved, topics that are made and emptied, and who is furthest behind."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stafeta.broker import Broker, Retention, Subscription, overview
from stafeta.errors import InvalidName, InvalidRequest, NoSuchOffset, NoSuchTopic, NotSubscribed, StoreFull
from stafeta.store.sqlite import SqliteStore
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import FailingMemory, run

KEPT = Retention(messages=1000)


def left(broker: Broker, subscription: Subscription) -> Awaitable[list[bytes]]:
    async def found() -> list[bytes]:
        batches = await broker.fetch(subscription, None, 1 << 20)
        return [payload for batch in batches for payload in batch.payloads]

    return found()


async def filled(store: Any = None, retention: Retention | None = KEPT) -> tuple[Broker, Subscription]:
    """Five messages, of which 1, 2 and 4 are acknowledged."""
    broker = await Broker.open(store or MemoryStore(), retention=lambda name: retention)
    subscription = broker.subscribe("c", "t")
    for text in b"abcde":
        broker.publish("t", bytes([text]))
    await broker.commit()
    broker.ack_all(subscription, broker.topic("t"), [(1, 3), (4, 5)])
    await broker.commit()
    return broker, subscription


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, "abcde"), (1, "abcde"), (2, "bcde"), (3, "cde"), (5, "e"), (6, "")]
)
def test_a_moved_cursor_is_stored(tmp_path: Path, offset: int, expected: str) -> None:
    async def work() -> None:
        broker, subscription = await filled(SqliteStore(tmp_path, durability="os"))
        assert broker.move(subscription, broker.topic("t"), offset) == max(offset, 1)
        await broker.commit()
        assert b"".join(await left(broker, subscription)).decode() == expected
        await broker.close()
        again = await Broker.open(SqliteStore(tmp_path, durability="os"), retention=lambda name: KEPT)
        found = again.subscription("c", "t")
        assert b"".join(await left(again, found)).decode() == expected
        again.ack(found, again.topic("t"), 0, 6)
        await again.commit()
        assert await left(again, found) == []
        await again.close()

    run(work())


def test_what_a_moved_cursor_waits_for_is_not_collected() -> None:
    async def work() -> None:
        broker, subscription = await filled(retention=None)
        topic = broker.topic("t")
        broker.move(subscription, topic, 1)
        broker.ack(subscription, topic, 0, 2)
        await broker.commit()
        await broker.collector.collect()
        assert topic.first == 2
        assert broker.move(subscription, topic, 1) == 2  # the first has gone
        broker.move(subscription, topic, 6)
        await broker.collector.collect()
        assert topic.first == 6
        await broker.close()

    run(work())


def test_a_move_that_is_not_stored_has_not_happened() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker, subscription = await filled(store)
        store.fails = True
        broker.move(subscription, broker.topic("t"), 1)
        with pytest.raises(StoreFull):
            await broker.commit()
        assert broker.not_ready() == "No room is left."
        assert await left(broker, subscription) == [b"c", b"e"]
        store.fails = False
        broker.ack(subscription, broker.topic("t"), 3, 4)
        await broker.commit()
        assert await left(broker, subscription) == [b"e"]
        await broker.close()
        assert broker.not_ready() == "The broker is shutting down."

    run(work())


def test_a_wildcard_moves_back_on_topics_to_which_nothing_came_since() -> None:
    async def work() -> None:
        broker, _ = await filled()
        wide = broker.subscribe("w", "#")
        await broker.commit()
        topic = broker.topic("t")
        assert await left(broker, wide) == []
        broker.move(wide, topic, 4)
        await broker.commit()
        assert await left(broker, wide) == [b"d", b"e"]
        await broker.close()

    run(work())


def test_a_connected_consumer_follows() -> None:
    async def work() -> None:
        broker, subscription = await filled()
        woken: list[bool] = []
        consumer = broker.consumer("c", lambda: woken.append(True))
        consumer.resume()
        batches = await consumer.read(1 << 20)
        while more := await consumer.read(1 << 20):
            batches += more
        assert [payload for batch in batches for payload in batch.payloads] == [b"c", b"e"]
        woken.clear()
        broker.move(subscription, broker.topic("t"), 2)
        assert woken
        assert [bytes(payload) for batch in await consumer.read(1 << 20) for payload in batch.payloads] == [
            b"b",
            b"c",
            b"d",
            b"e",
        ]
        consumer.close()
        assert not subscription.on_move
        await broker.close()

    run(work())


@pytest.mark.parametrize(
    ("doing", "error"),
    [
        (lambda broker, one: broker.move(one, broker.topic("t"), 7), NoSuchOffset),
        (lambda broker, one: broker.move(one, broker.topic("other"), 1), InvalidRequest),
        (lambda broker, one: broker.make_topic("$sys/x"), InvalidName),
        (lambda broker, one: broker.make_topic("a b"), InvalidName),
        (lambda broker, one: broker.empty_topic("none"), NoSuchTopic),
        (lambda broker, one: broker.empty_topic("t"), InvalidRequest),  # somebody waits for 3 and 5
        (lambda broker, one: broker.subscription_named("c", "other"), NotSubscribed),
    ],
)
def test_what_cannot_be_is_refused(
    doing: Callable[[Broker, Subscription], object], error: type[Exception]
) -> None:
    async def work() -> None:
        broker, subscription = await filled()
        broker.make_topic("other")
        await broker.commit()
        with pytest.raises(error):
            doing(broker, subscription)
        assert await left(broker, subscription) == [b"c", b"e"]
        await broker.close()

    run(work())


def test_a_topic_is_made_emptied_and_gone(tmp_path: Path) -> None:
    async def work() -> None:
        broker, subscription = await filled(SqliteStore(tmp_path, durability="os"))
        assert broker.make_topic("made")
        assert not broker.make_topic("made")
        await broker.commit()
        await broker.collector.collect()
        assert broker.topic("made").keeps_last
        assert broker.empty_topic("made") == 0
        assert broker.empty_topic("t", waited_for=True) == 5
        await broker.commit()
        with pytest.raises(NoSuchTopic):
            broker.topic("made")
        assert await left(broker, subscription) == []
        broker.end_subscription(subscription)
        await broker.commit()
        await broker.close()
        again = await Broker.open(SqliteStore(tmp_path, durability="os"))
        assert again.next_offset("t") == 6  # no offset comes twice
        await again.close()

    run(work())


def test_those_that_are_furthest_behind_come_first() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        for client, filter_ in (("one", "a"), ("all", "#"), ("none", "z")):
            broker.subscribe(client, filter_)
        for name in "aaabb":
            broker.publish(name, b"x")
        await broker.commit()
        lines = await broker.lagging_lines(2)
        assert [(line.client, line.behind) for line in lines] == [("all", 5), ("one", 3)]
        by_age = await broker.lagging_lines(10, by_age=True)
        assert {line.client for line in by_age[:2]} == {"all", "one"}
        assert by_age[2].seconds == 0.0
        for wanted, clients in (
            ("a", {"one", "all"}),
            ("b", {"all"}),
            ("#", {"all"}),
            ("new", {"all"}),
            ("z", {"all", "none"}),
        ):
            assert {line.client for line in await broker.lagging_lines(10, wanted=wanted)} == clients
        await broker.close()

    run(work())


def test_a_list_reads_few_messages_and_the_next_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are behind, nobody waits for long; and in the end all their ages are told."""
    monkeypatch.setattr(overview, "READS", 2)

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        for number in range(5):
            broker.subscribe(f"c{number}", f"t/{number}")
            broker.publish(f"t/{number}", b"x")
        await broker.commit()
        for dated in (2, 4, 5, 5):
            lines = await broker.lagging_lines(10, by_age=True)
            assert [line.behind for line in lines] == [1] * 5
            assert sum(line.seconds > 0 for line in lines) == dated
        await broker.close()

    run(work())
