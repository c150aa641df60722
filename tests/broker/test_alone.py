"""Which groups the store may commit at once, and that whoever waits for one hears of it then."""

import asyncio

from stafeta.broker import Broker
from stafeta.store.port import Group
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run


class Slow(MemoryStore):
    """Keeps groups waiting, and notes which of them were alone."""

    def __init__(self) -> None:
        super().__init__()
        self.alone: list[bool] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def commit(self, group: Group) -> None:
        self.alone.append(group.alone)
        await self.go_on.wait()
        await super().commit(group)


def test_a_group_is_alone_where_nobody_else_waits_for_an_answer() -> None:
    async def work() -> None:
        store = Slow()
        broker = await Broker.open(store)
        broker.subscribe("c", "t")
        await broker.commit()
        store.alone.clear()
        store.go_on.clear()
        broker.publish("t", b"1")
        broker.answer(lambda error: None)
        await asyncio.sleep(0.01)
        broker.publish("t", b"2")
        second = broker.commit()
        store.go_on.set()
        await second
        broker.publish("t", b"3")
        await broker.commit()
        assert store.alone == [True, False, True]
        await broker.close()

    run(work())


class AtOnce(MemoryStore):
    """Has committed when it is asked to."""

    def commit(self, group: Group) -> "asyncio.Future[None]":  # type: ignore[override]
        done = asyncio.get_running_loop().create_future()
        try:
            super().commit(group).send(None)
        except StopIteration:
            done.set_result(None)
        return done


def test_what_is_committed_at_once_is_seen_and_answered_at_once() -> None:
    async def work() -> None:
        broker = await Broker.open(AtOnce())
        broker.subscribe("c", "t")
        await broker.commit()
        topic = broker.topic("t")
        seen: list[int] = []
        for number in (1, 2):
            broker.publish("t", b"x")
            broker.answer(lambda error: seen.append(topic.visible))
            assert len(seen) < number, "not before it is committed"
            await broker.commit()
        assert seen == [2, 3]
        await broker.close()

    run(work())
