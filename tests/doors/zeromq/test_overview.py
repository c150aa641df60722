"""Watching, waiting for several subscriptions, looking without acknowledging, and who waits for what."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stafeta import Client, Message, __version__
from stafeta.broker import Broker, Limits, overview
from stafeta.broker.log import PIECE
from stafeta.doors.zeromq import watchers
from stafeta.doors.zeromq.codec import Watch
from stafeta.errors import Lagging, Refused, StoreFull
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import FailingMemory, run
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer
from tests.waiting import PATIENCE, wait_until

Connect = Callable[..., Client]


def test_a_watcher_gets_what_is_published_from_now_on(
    connect: Connect, lasting: BrokerProcess, topic: str
) -> None:
    putter, watcher = connect(lasting.address), connect(lasting.address)
    putter.subscribe(f"{topic}/a")
    putter.put(f"{topic}/a", "before")
    filters = f"{topic}/+", f"{topic}/a", f"{topic}/b"
    assert watcher.watch(*filters) == []
    for number in range(3):  # the filters make the topics, and what two of them match comes once
        putter.put(f"{topic}/a", f"a{number}")
        putter.put(f"{topic}/b", b"\xff%d" % number)
    found: list[Message] = []
    while len(found) < 6:
        found += watcher.watch(*filters, wait=PATIENCE)
    assert [(one.topic, one.data) for one in found] == [
        (f"{topic}/{name}", data)
        for number in range(3)
        for name, data in (("a", b"a%d" % number), ("b", b"\xff%d" % number))
    ]
    assert [one.id for one in found] == [2, 1, 3, 2, 4, 3]
    assert [one.connected for one in putter.subscriptions(f"{topic}/+")] == [True]
    watcher.watch()
    assert putter.subscriptions(f"{topic}/+") == []
    with pytest.raises(Refused):
        putter.put(f"{topic}/b", "nobody")


def test_a_watcher_that_is_too_far_behind_is_told(
    tmp_path: Path,
) -> None:
    options = ("--set", "limits.max_lag=10")
    with (
        BrokerProcess(tmp_path / "data", *options) as broker,
        Client(broker.address) as client,
    ):
        client.watch("t")
        client.put_many("t", ["x"] * 100)
        with pytest.raises(Refused, match=r"limits\.max_lag"):
            client.watch("t")
        assert client.watch("t") == []
        client.put("t", "y")
        assert [one.text for one in client.watch("t", wait=PATIENCE)] == ["y"]


def test_a_watcher_that_does_not_ask_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "IDLE", 0.05)
    monkeypatch.setattr(watchers, "SWEEP", 0.01)

    async def life() -> None:
        broker = await Broker.open(MemoryStore())
        door = watchers.Watchers()
        asking = asyncio.create_task(door.ask(broker, Watch("asking", ["t"], PATIENCE), 1000))
        await door.ask(broker, Watch("silent", ["t", "u"], 0.0), 1000)
        async with asyncio.timeout(PATIENCE):
            while await asyncio.sleep(0.01, "watch/silent" in broker.clients):
                pass
        assert list(broker.clients) == ["watch/asking"]
        broker.publish("t", b"x")
        await broker.commit()
        assert [batch.payloads for batch in await asking] == [[b"x"]]
        door.close()
        assert not broker.clients
        await broker.close()

    run(life())


def test_a_watcher_that_was_ended_behind_its_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "SWEEP", 0.01)

    async def life() -> None:
        broker = await Broker.open(MemoryStore(), limits=Limits(max_lag=10))
        door = watchers.Watchers()
        await door.ask(broker, Watch("w", ["t"], 0.0), 1000)
        for _ in range(20):
            broker.publish("t", b"x")
        await broker.commit()
        async with asyncio.timeout(PATIENCE):
            while await asyncio.sleep(0.01, "watch/w" in broker.clients):
                pass
        with pytest.raises(Lagging):
            await door.ask(broker, Watch("w", ["t", "u"], 0.0), 1000)
        assert "watch/w" not in broker.clients
        await gets(broker, door, "w")
        door.close()
        await broker.close()

    run(life())


def test_a_watcher_whose_subscription_could_not_be_stored_begins_anew() -> None:
    async def life() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        door = watchers.Watchers()
        store.fails = True
        with pytest.raises(StoreFull):
            await door.ask(broker, Watch("w", ["t"], 0.0), 1000)
        store.fails = False
        await gets(broker, door, "w")
        door.close()
        await broker.close()

    run(life())


def test_a_watcher_gets_no_more_empty_messages_at_once_than_fit_a_reply() -> None:
    async def life() -> None:
        broker = await Broker.open(MemoryStore())
        door = watchers.Watchers()
        await door.ask(broker, Watch("w", ["t"], 0.0), 1000)
        for _ in range(10_000):
            broker.publish("t", b"")
        await broker.commit()
        counts: list[int] = []
        while sum(counts) < 10_000:
            counts.append(
                sum(batch.count for batch in await door.ask(broker, Watch("w", ["t"], PATIENCE), 1000))
            )
        assert max(counts) <= PIECE
        door.close()
        await broker.close()

    run(life())


async def gets(broker: Broker, door: watchers.Watchers, client: str) -> None:
    """A watcher gets what is published on t."""
    assert await door.ask(broker, Watch(client, ["t"], 0.0), 1000) == []
    broker.publish("t", b"y")
    await broker.commit()
    assert [batch.payloads for batch in await door.ask(broker, Watch(client, ["t"], PATIENCE), 1000)] == [
        [b"y"]
    ]


def test_waiting_for_several_subscriptions(connect: Connect, lasting: BrokerProcess, topic: str) -> None:
    client, putter = connect(lasting.address), connect(lasting.address)
    filters = [f"{topic}/a", f"{topic}/b", f"{topic}/c/#"]
    for filter_ in filters:
        client.subscribe(filter_)
    begin = time.monotonic()
    assert client.wait(filters, 0.2) == []
    assert time.monotonic() - begin >= 0.19
    putter.put(f"{topic}/c/x", "x")
    assert client.wait(filters, PATIENCE) == [f"{topic}/c/#"]
    putter.put(f"{topic}/a", "x")
    assert client.wait(filters, 0) == [f"{topic}/a", f"{topic}/c/#"]
    for filter_ in filters:
        client.ack(client.get_many(filter_))
    assert client.wait(filters, 0) == []
    with pytest.raises(Refused, match="no subscription"):
        putter.wait(filters, 0)


def test_the_last_messages_can_be_looked_at(connect: Connect, small: BrokerProcess, topic: str) -> None:
    client = connect(small.address)
    client.subscribe(topic)
    texts = [f"message {number} of a topic" for number in range(300)]
    client.put_many(topic, texts)
    assert [one.text for one in client.last(topic)] == texts[-1:]
    assert [(one.id, one.text) for one in client.last(topic, 200)] == list(enumerate(texts, 1))[-200:]
    assert len(client.last(topic, 5000)) == 300
    assert [one.text for one in client.get_many(topic, 1)] == texts[:1]
    with pytest.raises(Refused, match="does not exist"):
        client.last("nothing/there")


def test_who_waits_for_what(connect: Connect, lasting: BrokerProcess, topic: str) -> None:
    client, other = connect(lasting.address), connect(lasting.address)
    client.subscribe(f"{topic}/a")
    other.subscribe(f"{topic}/#")
    client.put(f"{topic}/a", "1")
    client.put_many(f"{topic}/a", ["2", "3"])
    client.put(f"{topic}/b", "4")
    client.ack(f"{topic}/a", up_to=2)
    other.ack(other.get_many(f"{topic}/#")[1:2])
    wait_until(lambda: client.subscriptions(f"{topic}/a")[0].seconds > 0)
    found = {one.filter: one for one in client.subscriptions(f"{topic}/a")}
    assert {one: found[one].behind for one in found} == {f"{topic}/a": 1, f"{topic}/#": 3}
    assert (found[f"{topic}/#"].topics, found[f"{topic}/#"].durable) == (2, True)
    assert found[f"{topic}/#"].seconds >= found[f"{topic}/a"].seconds
    mine = next(one for one in client.clients() if one.client == found[f"{topic}/a"].client)
    assert (mine.subscriptions, mine.behind, mine.connected) == (1, 1, False)
    client.ack(f"{topic}/a", up_to=3)
    assert [(one.behind, one.seconds) for one in client.subscriptions() if one.filter == f"{topic}/a"] == [
        (0, 0)
    ]
    stats = client.stats()
    assert stats["version"] == __version__
    assert stats["messages"] >= 4
    assert stats["subscriptions"] >= 2


def test_one_list_looks_into_the_log_for_a_limited_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "LOOKS", 4)

    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        for client in ("a", "b", "c"):
            for number in range(3):
                broker.subscribe(client, f"{client}/{number}", durable=True)
        for client in ("a", "b", "c"):
            for number in range(3):
                broker.publish(f"{client}/{number}", b"x")
        await asyncio.shield(broker.commit())
        found = await overview.subscriptions(broker, ("", ""), 100)
        assert [one.filter for one in found] == ["a/0", "a/1", "a/2", "b/0"]
        while more := await overview.subscriptions(broker, (found[-1].client, found[-1].filter), 100):
            found += more
        assert [one.filter for one in found] == [
            f"{client}/{number}" for client in "abc" for number in range(3)
        ]
        assert {one.behind for one in found} == {1}
        await broker.close()

    asyncio.run(work())


def test_lists_come_in_pages(dealer: Peer, topic: str) -> None:
    for client in ("pages-a", "pages-b"):
        for name in ("x", "y"):
            dealer.acked("SUB", f"{topic}/{name}", client)
    first = dealer.acked("SUBSCRIPTIONS", limit=3, after=["pages-a", ""])["subscriptions"]
    assert [(one["client"], one["filter"]) for one in first] == [
        ("pages-a", f"{topic}/x"),
        ("pages-a", f"{topic}/y"),
        ("pages-b", f"{topic}/x"),
    ]
    rest = dealer.acked("SUBSCRIPTIONS", limit=1, after=["pages-b", f"{topic}/x"])["subscriptions"]
    assert [(one["client"], one["filter"]) for one in rest] == [("pages-b", f"{topic}/y")]
    assert [one["client"] for one in dealer.acked("CLIENTS", limit=1, after="pages-a")["clients"]] == [
        "pages-b"
    ]


def test_putting_can_make_the_topic(connect: Connect, lasting: BrokerProcess, topic: str) -> None:
    client = connect(lasting.address)
    with pytest.raises(Refused, match="does not exist"):
        client.put(topic, "x")
    assert client.put(topic, "x", create=True) == 1
    assert client.put_many(f"{topic}/other", [b"\xff"] * 3, create=True).total == 3
