"""Lag of durable subscriptions: as each of them has it, and looked at without holding up the loop."""

import asyncio
from pathlib import Path
from time import thread_time

import pytest

from stafeta.broker import Broker, lag, portions
from stafeta.broker.portions import PORTION
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import FailingSqlite, run
from tests.broker.test_consumer import publish
from tests.doors.test_turns import MOST, TOPICS, counted
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "WAIT", PATIENCE)  # else a busy machine shows what was before


class Clock:
    """The broker's, that goes as a test wants it to."""

    def __init__(self, broker: Broker) -> None:
        self.now = 1_000_000_000
        broker.now = lambda: self.now


async def turns(work: "asyncio.Task[object]") -> int:
    """How many turns of the loop something takes."""
    taken = 0
    while not work.done():
        await asyncio.sleep(0)
        taken += 1
    return taken


def test_lag_is_told_in_messages_and_in_seconds_of_the_oldest(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        slow = broker.subscribe("slow", "#")
        quick = broker.subscribe("quick", "a")
        broker.subscribe("live", "#", durable=False)
        broker.publish("a", b"1")
        await broker.commit()
        broker.publish("b", b"2")
        broker.publish("a", b"3")
        await broker.commit()
        broker.ack(quick, broker.topic("a"), 1, 3)
        await broker.commit()
        found = await broker.lag()
        (line,) = [one for one in await broker.subscription_lines(("", ""), 10) if one.client == "slow"]
        assert found.subscriptions == 2, "the live one is none of them"
        assert (found.messages, found.most_messages, line.behind) == (3, 3, 3)
        assert found.over_messages[0] == 1
        assert 0 <= found.most_seconds <= line.seconds + 1, "the same message is the oldest"
        assert [(one.client, one.filter, one.messages) for one in found.slowest] == [("slow", "#", 3)]
        assert found.unknown == 0
        broker.ack(slow, broker.topic("a"), 1, 2)
        broker.ack(slow, broker.topic("b"), 1, 2)
        await broker.commit()
        assert (await broker.lag()).messages == 1
        await broker.close()

    run(work())


def test_the_age_is_that_of_the_oldest_message_which_is_not_acknowledged() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "t")
        await publish(broker, "t=1", "t=2", "t=3", "t=4")
        published = broker.now()
        clock = Clock(broker)
        clock.now = published + 100_000_000
        found = await broker.lag()
        assert found.most_seconds == pytest.approx(100, abs=30)
        assert found.over_seconds == (1, 1, 1, 0, 0, 0)
        broker.ack(subscription, broker.topic("t"), 2, 4)
        await broker.commit()
        assert (await broker.lag()).messages == 2, "those between are done, and 1 and 4 are not"
        broker.ack(subscription, broker.topic("t"), 1, 2)
        broker.ack(subscription, broker.topic("t"), 4, 5)
        await broker.commit()
        found = await broker.lag()
        assert (found.messages, found.most_seconds, found.slowest) == (0, 0.0, ())
        await broker.close()

    run(work())


def test_many_subscriptions_are_looked_at_in_portions() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        many = 5 * PORTION
        for number in range(many):
            broker.subscribe(f"c{number}", f"t{number % 10}")
        await publish(broker, *[f"t{number}=x" for number in range(10)])
        loop = asyncio.get_running_loop()
        taken = await turns(loop.create_task(broker.lag()))
        assert taken >= many // PORTION, "a turn of the loop looks at a portion at most"
        first = await broker.lag()
        assert (first.subscriptions, first.messages, first.over_messages[0]) == (many, many, many)
        assert len(first.slowest) <= 2 * lag.SLOWEST
        await broker.close()

    run(work())


def test_one_subscription_of_many_topics_is_looked_at_in_portions() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("c", "#")
        many = 3 * PORTION
        await publish(broker, *[f"t/{number}=x" for number in range(many)])
        taken = await turns(asyncio.get_running_loop().create_task(broker.lag()))
        assert taken >= many // PORTION
        found = await broker.lag()
        assert found.messages == many
        await broker.close()

    run(work())


def test_no_turn_of_the_loop_looks_at_more_than_a_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(portions, "PORTION", MOST)
        broker = await Broker.open(MemoryStore())
        broker.subscribe("all", "#")
        for number in range(TOPICS):
            broker.subscribe(f"c{number}", f"t/{number}")
        await publish(broker, *[f"t/{number}=x" for number in range(TOPICS)])
        with counted() as seen:
            await asyncio.sleep(0)  # the turn that began with what is not counted
            found = await broker.lag()
        assert found.messages == 2 * TOPICS
        assert 1 < seen.most <= MOST
        await broker.close()

    run(work())


def test_who_asks_where_there_is_much_gets_the_last_result_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(lag, "INTERVAL", 0.01)
        broker = await Broker.open(MemoryStore())
        subscriptions = [broker.subscribe(f"c{number}", "t") for number in range(lag.LITTLE + 1)]
        await publish(broker, "t=x")
        first = await broker.lag()
        assert first.messages == len(subscriptions)
        for subscription in subscriptions:
            broker.ack(subscription, broker.topic("t"), 1, 2)
        await broker.commit()
        assert await turns(asyncio.get_running_loop().create_task(broker.lag())) <= 2
        while (await broker.lag()).messages:  # noqa: ASYNC110 - a pass in the background finds it out
            await asyncio.sleep(0.01)
        await broker.close()

    run(work())


def test_times_that_are_not_looked_up_yet_are_told_and_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(lag, "LOOKS", 2)
        monkeypatch.setattr(lag, "CANDIDATES", 4)
        broker = await Broker.open(MemoryStore())
        for number in range(8):
            broker.subscribe(f"c{number}", f"t{number}")
        await publish(broker, *[f"t{number}=x" for number in range(8)])
        unknown = [(await broker.lag()).unknown for _ in range(8)]
        assert unknown[0] == 6, "of 8 messages the times of 2 are known"
        assert unknown[-1] == 0, "those that stay where they are come to be known"
        assert sorted(unknown, reverse=True) == unknown
        await broker.close()

    run(work())


def test_a_store_that_cannot_be_read_does_not_end_the_looking(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        broker.subscribe("c", "t")
        await publish(broker, "t=x")
        task = asyncio.get_running_loop().create_task(broker.lag())
        await asyncio.sleep(0)
        await broker.close()
        await asyncio.wait([task])
        assert task.cancelled() or task.result().messages == 1

    run(work())


def test_passes_in_the_background_take_a_small_share_of_a_processor() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        for number in range(3000):
            broker.subscribe(f"c{number}", f"t/{number % 30}")
        await broker.commit()
        before = thread_time()
        await broker.lag()
        sampler = broker.lag_sampler
        assert 0 < sampler.cost <= thread_time() - before
        assert sampler.pause >= lag.INTERVAL
        sampler.cost = 0.5  # of a slow machine
        assert sampler.pause == 0.5 / lag.SHARE
        sampler.cost = 100.0
        assert sampler.pause == lag.LONGEST
        await broker.close()

    run(work())
