"""Topics with a retention of their own, whatever the configuration says of others."""

from pathlib import Path

import pytest

from stafeta.backup import points
from stafeta.backup.destination import Destination
from stafeta.backup.restoring import restore
from stafeta.backup.taking import take
from stafeta.broker import Broker, Limits, Retention
from stafeta.errors import NoSuchTopic, StoreFull
from stafeta.store.sqlite import SqliteStore
from tests.broker.stores import FailingMemory, run
from tests.soundness import assert_sound

CONFIGURED = Retention(messages=100, rule="#")
OWN = Retention(age=3_600_000_000, size=None, messages=3)


async def collected(broker: Broker, name: str) -> list[bytes]:
    await broker.commit()
    await broker.collector.collect()
    await broker.commit()
    topic = broker.topic(name)
    batches = await broker.read(topic, topic.first, 1 << 20)
    return [payload for batch in batches for payload in batch.payloads]


def test_it_counts_after_a_restart_and_a_reload(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(SqliteStore(tmp_path, durability="os"), retention=lambda name: CONFIGURED)
        assert broker.make_topic("t", keep=OWN)
        for text in b"abcde":
            broker.publish("t", bytes([text]))
        assert await collected(broker, "t") == [b"c", b"d", b"e"]
        await broker.close()
        again = await Broker.open(SqliteStore(tmp_path, durability="os"))
        again.reconfigure(Limits(), lambda name: CONFIGURED)
        topic = again.topic("t")
        assert (topic.retention, topic.keeps_last) == (OWN, False)
        again.publish("t", b"f")
        assert await collected(again, "t") == [b"d", b"e", b"f"]
        again.make_topic("t", keep="configured")
        assert topic.retention == CONFIGURED
        await again.commit()
        await again.close()
        last = await Broker.open(SqliteStore(tmp_path, durability="os"))
        assert last.topic("t").own_retention is None
        await last.close()

    run(work())
    assert_sound(tmp_path)


def test_a_topic_that_is_empty_stays_for_it_until_it_is_emptied() -> None:
    async def work() -> None:
        broker = await Broker.open(store := FailingMemory())
        broker.make_topic("t", keep=Retention(messages=0))
        broker.publish("t", b"a")
        assert await collected(broker, "t") == []
        broker.empty_topic("t")
        await broker.commit()
        with pytest.raises(NoSuchTopic):
            broker.topic("t")
        broker.publish("t", b"b", create=True)  # the same topic again, without it
        assert broker.topic("t").retention is None
        await broker.close()
        again = await Broker.open(store)
        assert again.topic("t").own_retention is None
        await again.close()

    run(work())


def test_what_cannot_be_stored_is_as_before() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store, retention=lambda name: CONFIGURED)
        broker.make_topic("t", keep=OWN)
        await broker.commit()
        store.fails = True
        broker.make_topic("t", keep="configured")
        with pytest.raises(StoreFull):
            await broker.commit()
        assert broker.topic("t").retention == broker.topic("t").own_retention == OWN
        broker.make_topic("new", keep=OWN)
        with pytest.raises(StoreFull):
            await broker.commit()
        store.fails = False
        broker.publish("new", b"a", create=True)
        assert broker.topic("new").retention == CONFIGURED
        await broker.close()

    run(work())


def test_it_is_in_a_backup(tmp_path: Path) -> None:
    async def make() -> None:
        broker = await Broker.open(SqliteStore(tmp_path / "data", durability="os"))
        broker.make_topic("t", keep=OWN)
        await broker.commit()
        await broker.close()

    async def look() -> Retention | None:
        broker = await Broker.open(SqliteStore(tmp_path / "restored", durability="os"))
        found = broker.topic("t").retention
        await broker.close()
        return found

    run(make())
    destination = Destination.of(str(tmp_path / "backup"))
    take(tmp_path / "data", destination)
    restore(destination, points.find(destination, None), tmp_path / "restored")
    assert run(look()) == OWN
