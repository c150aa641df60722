"""Server-sent events and WebSockets: what is published comes, and whoever comes back misses nothing."""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.brokers import BrokerProcess
from tests.doors.http.peers import Events, Peer, Place, messages_of, topic_path
from tests.waiting import PATIENCE, wait_until

Opening = Callable[..., Events]


def test_events_come_as_they_are_published(peer: Peer, topic: str, events: Opening) -> None:
    stream = events(filter=[f"{topic}/+", topic])
    peer.publish(topic, "a")
    peer.publish(f"{topic}/x", "b")
    found = stream.take(2)
    assert [(one.name, one.data["topic"], one.data["payload"]) for one in found] == [
        ("message", topic, "a"),
        ("message", f"{topic}/x", "b"),
    ]
    assert stream.answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"from": "earliest"}, "abcd"),
        ({"offset": 2}, "bcd"),
        ({"offset": 4}, "d"),
        ({"time": "0"}, "abcd"),
        ({}, "d"),
    ],
)
def test_a_stream_begins_where_it_is_asked_to(
    peer: Peer, topic: str, events: Opening, start: dict[str, object], expected: str
) -> None:
    peer.publish(topic, *"abc")
    stream = events(filter=topic, **start)
    peer.publish(topic, "d")
    assert stream.texts(len(expected)) == list(expected)


@pytest.mark.parametrize("name", ["", "named"])
def test_whoever_comes_back_with_the_last_id_misses_nothing(
    place: Place, peer: Peer, topic: str, name: str
) -> None:
    more = {"client": f"{name}-{topic}"} if name else {}
    with Events(place, filter=f"{topic}/#", **more) as stream:
        peer.publish(f"{topic}/1", *"ab")
        peer.publish(f"{topic}/2", *"cd")
        seen = stream.take(3)
    assert [one.data["payload"] for one in seen] == list("abc")
    peer.publish(f"{topic}/1", "e")
    peer.publish(f"{topic}/3", "f")  # a topic that was not there
    with Events(place, {"Last-Event-ID": seen[-1].id}, filter=f"{topic}/#", **more) as stream:
        assert stream.texts(3) == ["d", "e", "f"]
    with Events(place, filter=f"{topic}/#", last_id=seen[0].id, **more) as stream:
        assert stream.texts(2) == (["d", "e"] if name else ["b", "c"])  # a name has acknowledged up to c


def test_a_name_gets_what_came_while_it_was_away(place: Place, peer: Peer, topic: str) -> None:
    client = f"away-{topic}"
    with Events(place, client=client, filter=topic, ack="auto") as stream:
        peer.publish(topic, *"ab")
        assert stream.texts(2) == ["a", "b"]
        wait_until(lambda: _behind(peer, client) == 0)  # its system has them
    peer.publish(topic, "c")
    with Events(place, client=client) as stream:
        assert stream.texts(1) == ["c"]
        assert _behind(peer, client) == 1  # nobody has said that it is done with
    with Events(place, client=client) as stream:
        assert stream.texts(1) == ["c"]


def _behind(peer: Peer, client: str) -> int:
    lines = peer.get("/api/subscriptions", limit=1000)["subscriptions"]
    (found,) = [one["behind"] for one in lines if one["client"] == client]
    return int(found)


def test_a_stream_follows_its_cursor_back(place: Place, peer: Peer, topic: str) -> None:
    aim = {"client": f"back-{topic}", "filter": topic}
    with Events(place, **aim) as stream:
        peer.publish(topic, *"abc")
        assert stream.texts(3) == list("abc")
        peer.post("/api/subscriptions/move", {**aim, "offset": 2})
        assert stream.texts(2) == list("bc")


def test_a_name_is_read_by_one_stream_at_a_time(place: Place, peer: Peer, topic: str) -> None:
    aim = {"client": f"one-{topic}", "filter": topic}
    with Events(place, **aim) as first, Events(place, **aim) as second:
        (event,) = first.take(1)
        assert (event.name, event.data["type"]) == ("error", "/api/docs#TakenOver")
        assert list(first) == []
        peer.publish(topic, "x")
        assert second.texts(1) == ["x"]


def test_an_ended_subscription_ends_its_stream(place: Place, peer: Peer, topic: str) -> None:
    aim = {"client": f"end-{topic}", "filter": topic}
    with Events(place, **aim) as stream:
        assert peer.ask("DELETE", "/api/subscriptions", **aim).status == 200
        assert [event.data["type"] for event in stream] == ["/api/docs#NotSubscribed"]


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({}, 400),
        ({"filter": "a b"}, 400),
        ({"filter": "a", "client": "c", "offset": 1}, 400),
        ({"filter": "a/#", "offset": 1}, 400),
        ({"filter": "a", "ack": "auto"}, 400),
        ({"filter": "a", "last_id": "nonsense"}, 400),
        ({"filter": "a", "last_id": ".1.0123456789abcdef.7"}, 410),  # of another log
        ({"filter": "a", "offset": 100}, 409),
        ({"fitler": "a"}, 400),
    ],
)
def test_a_stream_that_cannot_be_is_refused(peer: Peer, parameters: dict[str, object], status: int) -> None:
    peer.post("/api/subscriptions", {"client": "holds", "filter": "a"})
    answer = peer.ask("GET", "/api/events", **parameters)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")


def test_live_subscriptions_go_with_their_streams(place: Place, peer: Peer, topic: str) -> None:
    before = peer.get("/api/stats")["subscriptions"]
    with Events(place, filter=f"{topic}/#"):
        assert peer.get("/api/stats")["subscriptions"] == before + 1
    wait_until(lambda: peer.get("/api/stats")["subscriptions"] == before)


def test_a_reader_that_does_not_read_costs_nothing_and_gets_everything_later(
    place: Place, peer: Peer, topic: str
) -> None:
    """More than all buffers on the way hold."""
    text, count = "x" * 100_000, 200
    with Events(place, filter=topic, **{"from": "earliest"}) as deaf, Events(place, filter=topic) as other:
        for _ in range(count // 20):
            peer.publish(topic, *[text] * 20)
        assert [event.data["offset"] for event in other.take(count)] == list(range(1, count + 1))
        assert [event.data["offset"] for event in deaf.take(count)] == list(range(1, count + 1))


def test_streams_go_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "topics.t.keep=1d", doors=("http",)) as broker:
        place = broker.door("http")
        with Peer(place) as peer, Events(place, client="c", filter="t") as stream:
            peer.publish("t", *"abc")
            seen = stream.take(2)
        broker.restart()
        with Events(place, {"Last-Event-ID": seen[-1].id}, client="c", filter="t") as stream:
            assert stream.texts(1) == ["c"]
        with Events(place, {"Last-Event-ID": seen[-1].id}, filter="t") as stream:
            assert stream.texts(1) == ["c"]


# --- WebSockets


def opened(place: Place, **parameters: object) -> ClientConnection:
    return connect(
        f"ws://{place[0]}:{place[1]}/api/socket?{urlencode(parameters, doseq=True)}",
        open_timeout=PATIENCE,
        max_size=None,
    )


def tell(connection: ClientConnection, **command: object) -> dict[str, Any]:
    connection.send(json.dumps(command))
    return dict(json.loads(connection.recv(PATIENCE)))


def test_a_websocket_subscribes_publishes_and_acknowledges(place: Place, peer: Peer, topic: str) -> None:
    client = f"ws-{topic}"
    with opened(place, client=client) as connection:
        assert tell(connection, type="subscribe", filter=topic, ref=7) == {
            "type": "subscribed",
            "filter": topic,
            "ref": 7,
        }
        peer.publish(topic, "a")
        message = json.loads(connection.recv(PATIENCE))
        assert (message["type"], message["topic"], message["offset"], message["payload"]) == (
            "message",
            topic,
            1,
            "a",
        )
        ranges = [{"topic": topic, "offset": 1}]
        assert tell(connection, type="ack", filter=topic, ranges=ranges)["type"] == "acked"
        assert _behind(peer, client) == 0
    with opened(place, filter=[f"{topic}/1"], client=client) as connection:
        assert (
            tell(connection, type="publish", topic=f"{topic}/none", payload="b", kind="string")["offset"] == 1
        )


@pytest.mark.parametrize(
    "command",
    [
        "nonsense",
        "[]",
        '{"type": "shout"}',
        '{"type": "subscribe"}',
        '{"type": "subscribe", "filter": "a b"}',
        '{"type": "unsubscribe", "filter": "never"}',
        '{"type": "ack", "filter": "x", "ranges": []}',
        '{"type": "publish", "topic": "t", "payload": 1}',
        '{"type": "publish", "topic": "$sys/x", "payload": "x"}',
        '{"type": "subscribe", "filter": "a", "more": 1}',
        '{"type": "subscribe", "filter": "\\ud800"}',
        '{"type": "publish", "topic": "t", "payload": "x", "kind": []}',
        '{"type": "publish", "topic": "t", "payload": "x", "encoding": {}}',
        pytest.param(
            f'{{"type": "subscribe", "filter": "a", "ref": {"[" * 400}{"]" * 400}}}', id="nested too deeply"
        ),
    ],
)
def test_a_command_that_cannot_be_done_is_answered_with_the_problem(place: Place, command: str) -> None:
    with opened(place) as connection:
        connection.send(command)
        reply = json.loads(connection.recv(PATIENCE))
        assert reply["type"] == "error"
        assert reply["problem"]["detail"]
        assert tell(connection, type="subscribe", filter="a/#")["type"] == "subscribed"


def test_messages_go_to_whoever_reads_while_others_hold_a_connection(
    place: Place, peer: Peer, topic: str
) -> None:
    """A pipelined request behind a stream waits, and does no harm."""
    with socket.create_connection(place, PATIENCE) as raw:
        request = f"GET /api/events?filter={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        raw.sendall((request + "GET /api/stats HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3).encode())
        assert b"200 OK" in raw.recv(65536)
        peer.publish(topic, "x")
        found = b""
        while b'"payload":"x"' not in found:
            found += raw.recv(65536)
    assert peer.get(messages_of(topic))["end"] == 2


def test_an_id_from_before_a_move_back_does_not_undo_it(peer: Peer, topic: str, events: Opening) -> None:
    aim = {"client": f"c-{topic}", "filter": topic}
    peer.post("/api/subscriptions", aim)
    peer.publish(topic, *"abcde")

    def move(to: str) -> None:
        """While the client is away."""
        lines = "/api/subscriptions"
        wait_until(lambda: not any(one["connected"] for one in peer.get(lines, topic=topic)["subscriptions"]))
        peer.post("/api/subscriptions/move", {**aim, "to": to})

    with events(**aim) as stream:
        ids = [event.id for event in stream.take(5)]
    for seen in (ids[4], ids[1]):
        move("earliest")
        with events({"Last-Event-ID": seen}, **aim) as stream:
            assert stream.take(5)[0].id == ids[0]
    with events({"Last-Event-ID": ids[2]}, **aim) as stream:  # which it has since
        assert stream.texts(2) == ["d", "e"]
    move("latest")
    with events({"Last-Event-ID": ids[1]}, **aim) as stream:  # nor does it undo one forward
        peer.publish(topic, "f")
        assert stream.texts(1) == ["f"]


def test_what_waits_behind_damage_is_not_acknowledged_by_ids_of_other_topics(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, doors=("http",)) as broker, Peer(broker.door("http")) as peer:
        peer.post("/api/subscriptions", {"client": "r", "filter": "t/#"})
        for topic, text in [("t/a", "damaged-soon"), ("t/a", "behind"), ("t/b", "other")]:
            peer.publish(topic, text)
        broker.stop()
    database = data / "stafeta.db"
    content = database.read_bytes()
    database.write_bytes(content.replace(b"damaged-soon", bytes(12)))
    with BrokerProcess(data, doors=("http",), damaged=True) as broker, Peer(broker.door("http")) as peer:
        with Events(broker.door("http"), client="r") as stream:
            other, notice = stream.take(2)
        assert (other.data["payload"], notice.name) == ("other", "damaged")
        with Events(broker.door("http"), {"Last-Event-ID": other.id}, client="r", filter="t/#"):
            found = peer.get("/api/subscriptions/cursors", client="r", filter="t/#")["cursors"]
        assert {one["topic"]: one["next"] for one in found}["t/a"] == 1


UPGRADE = (
    "GET /api/socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
STATS = "GET /api/stats HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(("behind", "ended"), [(STATS, False), (UPGRADE, True)], ids=["request", "socket"])
def test_nothing_stays_of_a_stream_that_requests_are_pipelined_behind(
    place: Place, peer: Peer, topic: str, behind: str, ended: bool
) -> None:
    """A WebSocket cannot begin there, and ends the connection; so does whoever goes."""
    peer.publish(topic, "x")
    before = peer.get("/api/stats")["http"]["streams"]
    with socket.create_connection(place, PATIENCE) as raw:
        raw.sendall(f"GET /api/events?filter={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200 OK" in raw.recv(65536)
        wait_until(lambda: peer.get("/api/stats")["http"]["streams"] > before)
        with suppress(ConnectionError):
            raw.sendall(behind.encode())
            if ended:
                answer = b""
                while some := raw.recv(65536):
                    answer += some
                assert b"101" not in answer
    wait_until(lambda: peer.get("/api/stats")["http"]["streams"] <= before)
    wait_until(lambda: peer.get(topic_path(topic))["subscriptions"] == 0)
