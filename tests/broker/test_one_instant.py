"""Reading several topics takes time, and more is published meanwhile: even so the order is that of publication."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from stafeta.broker import Broker
from stafeta.message import Batch
from stafeta.store.sqlite import SqliteStore
from tests.broker.batches import interleaved, texts
from tests.broker.stores import run


class Interrupted(SqliteStore):
    """Something happens while the first batch is read."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def read(self, topic: int, start: int, stop: int, size: int) -> list[Batch]:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            await happens()
        return await super().read(topic, start, stop, size)


async def prepared(folder: Path) -> tuple[Broker, Interrupted]:
    store = Interrupted(folder, durability="os")
    broker = await Broker.open(store, tail=0)
    broker.subscribe("c", "#")
    for name, text in (("a", b"1"), ("b", b"2")):
        broker.publish(name, text)
    await broker.commit()

    async def publish_more() -> None:
        for name, text in (("a", b"3"), ("b", b"4")):
            broker.publish(name, text)
        await broker.commit()

    store.meanwhile = publish_more
    return broker, store


def test_what_a_filter_fetches_has_no_gaps(tmp_path: Path) -> None:
    async def work() -> None:
        broker, _ = await prepared(tmp_path)
        subscription = broker.subscribe("c", "#")
        first = await broker.fetch(subscription, list(subscription.cursors), 1 << 20)
        assert texts(first) == ["a=1", "b=2"]
        second = await broker.fetch(subscription, list(subscription.cursors), 1 << 20)
        assert texts(second) == ["a=1", "b=2", "a=3", "b=4"]
        await broker.close()

    run(work())


def test_what_a_feed_hands_out_is_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        broker, _ = await prepared(tmp_path)
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=True)
        got: list[str] = []
        while consumer.ready:
            got += interleaved(await consumer.read(1 << 20))
        assert got == ["a=1", "b=2", "a=3", "b=4"]
        await broker.close()

    run(work())
