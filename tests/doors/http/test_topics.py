"""Topics and their messages over HTTP: what is published, read, listed, made and emptied."""

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest

from stafeta.backup import points
from stafeta.backup.destination import Destination
from stafeta.backup.restoring import restore
from stafeta.backup.taking import take
from stafeta.broker import Broker
from stafeta.errors import StoreDamaged
from stafeta.store.sqlite import SqliteStore
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Peer, messages_of, topic_path
from tests.doors.opened import http
from tests.waiting import wait_until


def test_what_is_published_is_read_as_it_was(peer: Peer, topic: str) -> None:
    assert peer.publish(topic, "a", "ș") == {"topic": topic, "first": 1, "last": 2, "count": 2}
    found = peer.get(messages_of(topic))
    assert [one["payload"] for one in found["messages"]] == ["a", "ș"]
    assert (found["first"], found["end"], found["next"]) == (1, 3, 3)
    message = found["messages"][0]
    assert message["topic"] == topic
    assert (message["offset"], message["kind"]) == (1, "string")
    assert message["source"].startswith("127.0.0.1:")
    assert message["time"].endswith("Z")


@pytest.mark.parametrize(
    ("type_", "kind", "body", "expected"),
    [
        ("application/json", "", b'{"a": [1.50]}', ("json", '{"a": [1.50]}', None)),
        ("application/cloudevents+json", "", b"null", ("json", "null", None)),
        ("text/plain; charset=utf-8", "", "ș".encode(), ("string", "ș", None)),
        ("application/octet-stream", "", b"\xff\x00", ("bytes", b64encode(b"\xff\x00").decode(), "base64")),
        ("application/octet-stream", "", b"ab", ("bytes", "ab", None)),
        ("text/plain", "int", b"-12", ("int", "-12", None)),
        ("text/plain", "float", b"1234.4321", ("float", "1234.4321", None)),
    ],
)
def test_a_body_is_one_message_of_what_its_media_type_says(
    peer: Peer, topic: str, type_: str, kind: str, body: bytes, expected: tuple[str, str, str | None]
) -> None:
    answer = peer.ask(
        "POST", messages_of(topic), body, {"Content-Type": type_}, **({"kind": kind} if kind else {})
    )
    assert (answer.status, answer.json["first"]) == (201, 1)
    (found,) = peer.get(messages_of(topic))["messages"]
    assert (found["kind"], found["payload"], found.get("encoding")) == expected


def test_a_topic_has_a_retention_of_its_own(peer: Peer, topic: str) -> None:
    own = f"own/{topic}"
    assert peer.ask("PUT", topic_path(own), {"keep": {"messages": 2, "seconds": 3600.5}}).status == 201
    info = peer.get(topic_path(own))
    assert info["keep"] == {"seconds": 3600.5, "bytes": None, "messages": 2, "rule": None, "own": True}
    assert not info["keeps_last"]
    peer.publish(own, *"abcd")
    wait_until(lambda: peer.texts(own) == ["c", "d"])
    assert peer.ask("PUT", topic_path(own), {"keep": None}).json == {"topic": own, "created": False}
    wait_until(lambda: peer.ask("GET", topic_path(own)).status == 404)  # which nothing keeps any more
    assert peer.ask("PUT", topic_path(topic), {"keep": {"bytes": 0}}).status == 201
    assert peer.get(topic_path(topic))["keep"]["own"]
    peer.ask("PUT", topic_path(topic), {"keep": None, "keep_last": True})
    assert peer.get(topic_path(topic))["keep"]["rule"] == "kept/#"


@pytest.mark.parametrize(
    "keep",
    [
        "1d",
        {},
        {"seconds": None},
        {"seconds": -1},
        {"seconds": "soon"},
        {"seconds": 1e300},
        {"bytes": 1.5},
        {"messages": -1},
        {"age": 5},
    ],
)
def test_a_retention_that_is_none_is_refused(peer: Peer, topic: str, keep: object) -> None:
    answer = peer.ask("PUT", topic_path(topic), {"keep": keep})
    assert answer.status == 400, answer
    assert answer.json["detail"]
    assert peer.ask("GET", topic_path(topic)).status == 404


def test_offsets_that_a_restored_broker_leaves_out_are_no_messages(tmp_path: Path) -> None:
    keep = ("--set", 'topics."kept/#".keep=1d')
    with (
        BrokerProcess(tmp_path / "data", *keep, doors=("http",)) as broker,
        Peer(broker.door("http")) as peer,
    ):
        peer.publish("kept/a", "a", "b", "c")
        broker.stop()
    destination = Destination.of(str(tmp_path / "backup"))
    take(tmp_path / "data", destination)
    restore(destination, points.find(destination, None), tmp_path / "restored")
    with (
        BrokerProcess(tmp_path / "restored", *keep, doors=("http",)) as broker,
        Peer(broker.door("http")) as peer,
    ):
        peer.publish("kept/a", "d")
        info = peer.get(topic_path("kept/a"))
        assert (info["messages"], info["published"]) == (4, 4)
        (gap,) = peer.get("/api/damaged")["damaged"]
        assert (gap["topic"], gap["first"], gap["last"] + 1, gap["skipped"]) == (
            "kept/a",
            4,
            info["next"] - 1,
            True,
        )
        assert peer.texts("kept/a", last=3) == ["b", "c", "d"]
        assert peer.texts("kept/a", limit=10) == ["a", "b", "c", "d"]
        metrics = peer.ask("GET", "/metrics", None, None, topics="kept/#").body
        assert b'stafeta_topic_stored_messages{topic="kept/a"} 4.0' in metrics
        assert b'stafeta_topic_published_messages_total{topic="kept/a"} 4.0' in metrics
        assert peer.ask("DELETE", topic_path("kept/a")).json["messages"] == 4
        wait_until(lambda: b"stafeta_collected_messages_total 4.0" in peer.ask("GET", "/metrics").body)


def test_damage_is_listed_once_somebody_has_found_it(tmp_path: Path) -> None:
    """Also before it is skipped, in pages."""
    damaged = {"t/a": (2, 4, 5), "t/b": (1, 3)}

    async def fill() -> None:
        broker = await Broker.open(SqliteStore(tmp_path, durability="os"))
        broker.subscribe("c", "t/#")
        for offset in range(1, 7):
            for name in damaged:
                broker.publish(name, f"<{name}-{offset}>".encode())
                await broker.commit()
        await broker.close()

    async def look() -> None:
        broker = await Broker.open(SqliteStore(tmp_path, durability="os"), tail=0)
        door, place = await http(broker)

        def listed(limit: int = 100) -> list[tuple[str, int, int, bool]]:
            found: list[tuple[str, int, int, bool]] = []
            after: str | None = ""
            with Peer(place) as peer:
                while after is not None:
                    page = peer.get("/api/damaged", limit=limit, after=after, filter="t/#")
                    found += [tuple(one.values()) for one in page["damaged"]]
                    assert len(page["damaged"]) <= limit
                    after = page["after"]
            return found

        assert await asyncio.to_thread(listed) == []
        for name, offsets in damaged.items():
            for offset in offsets:
                with pytest.raises(StoreDamaged):
                    await broker.read(broker.topic(name), offset, 1000, offset + 1)
        expected = [("t/a", 2, 2, False), ("t/a", 4, 5, False), ("t/b", 1, 1, False), ("t/b", 3, 3, False)]
        for limit in (1, 2, 3, 4, 100):
            assert await asyncio.to_thread(listed, limit) == expected
        await broker.skip("t/a", 4, 5)
        expected[1:2] = [("t/a", 4, 4, True), ("t/a", 5, 5, False)]
        for limit in (1, 2, 100):
            assert await asyncio.to_thread(listed, limit) == expected
        subscription = broker.subscription("c", "t/#")
        broker.ack(subscription, broker.topic("t/a"), 0, 7)
        await broker.commit()
        await broker.collector.collect()
        assert await asyncio.to_thread(listed) == expected[3:]  # what is gone is not damaged
        await door.close()
        await broker.close()

    asyncio.run(fill())
    database = tmp_path / "stafeta.db"
    content = database.read_bytes()
    for name, offsets in damaged.items():
        for offset in offsets:
            text = f"<{name}-{offset}>".encode()
            assert text in content
            content = content.replace(text, bytes(len(text)))
    database.write_bytes(content)
    asyncio.run(look())
