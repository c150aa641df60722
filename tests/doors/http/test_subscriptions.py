"""Subscriptions over HTTP: what waits for a client, how far it has come, and how it is moved."""

import threading
from datetime import UTC, datetime

import pytest

from tests.doors.http.peers import Peer, Place, messages_of, topic_path
from tests.waiting import wait_until


@pytest.fixture
def aim(topic: str, peer: Peer) -> dict[str, str]:
    """A subscription to a topic of five messages."""
    found = {"client": f"c-{topic}", "filter": topic}
    answer = peer.ask("POST", "/api/subscriptions", found)
    assert answer.status == 201
    assert peer.ask("POST", "/api/subscriptions", found).status == 200  # it is there
    peer.publish(topic, *"abcde")
    return found


def fetch(peer: Peer, aim: dict[str, str], **more: object) -> list[str]:
    return [one["payload"] for one in peer.get("/api/subscriptions/messages", **aim, **more)["messages"]]


def test_what_is_acknowledged_does_not_come_again(peer: Peer, topic: str, aim: dict[str, str]) -> None:
    assert fetch(peer, aim) == fetch(peer, aim) == list("abcde")
    assert fetch(peer, aim, limit=2) == ["a", "b"]
    ranges = [{"topic": topic, "offset": 2}, {"topic": topic, "first": 4, "last": 5}]
    peer.post("/api/subscriptions/ack", {**aim, "ranges": ranges})
    assert fetch(peer, aim) == ["a", "c"]
    peer.post("/api/subscriptions/ack", {**aim, "ranges": [{"topic": topic, "last": 3}]})
    assert fetch(peer, aim) == []
    (cursor,) = peer.get("/api/subscriptions/cursors", **aim)["cursors"]
    assert cursor == {"topic": topic, "next": 6, "first": 1, "end": 6, "behind": 0}


def test_one_request_waits_for_messages(place: Place, peer: Peer, topic: str, aim: dict[str, str]) -> None:
    peer.post("/api/subscriptions/ack", {**aim, "ranges": [{"topic": topic, "last": 5}]})
    assert fetch(peer, aim, wait="0.05") == []
    found: list[list[str]] = []

    def wait() -> None:
        with Peer(place) as another:
            found.append(fetch(another, aim, wait=30))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: _line(peer, aim)["connected"])
    peer.publish(topic, "new")
    thread.join()
    assert found == [["new"]]


def _line(peer: Peer, aim: dict[str, str]) -> dict[str, object]:
    lines = peer.get("/api/subscriptions", topic=aim["filter"])["subscriptions"]
    (found,) = [one for one in lines if one["client"] == aim["client"]]
    return dict(found)


def test_a_line_says_how_far_behind_it_is_in_messages_and_in_time(peer: Peer, aim: dict[str, str]) -> None:
    line = _line(peer, aim)
    assert (line["door"], line["durable"], line["topics"], line["behind"]) == ("http", True, 1, 5)
    wait_until(lambda: _line(peer, aim)["seconds"] > line["seconds"])  # type: ignore[operator]
    for sort in ("behind", "seconds"):
        lines = peer.get("/api/subscriptions", sort=sort, limit=1000)["subscriptions"]
        assert any(one["client"] == aim["client"] for one in lines)
        assert lines == sorted(lines, key=lambda one: -one[sort])


@pytest.mark.parametrize(
    ("to", "left", "collected"),
    [
        ({"to": "earliest"}, "abcde", 0),
        ({"to": "latest"}, "", 0),
        ({"offset": 4}, "de", 0),
        ({"offset": 1}, "abcde", 0),
        ({"offset": 0}, "abcde", 0),
        ({"offset": 6}, "", 0),
        ({"time": "2000-01-01T00:00:00Z"}, "abcde", 0),
        ({"time": "2200-01-01T00:00:00+01:00"}, "", 0),
        ({"time": 0}, "abcde", 0),
    ],
)
def test_a_subscription_moves_forward_and_back(
    peer: Peer, topic: str, aim: dict[str, str], to: dict[str, object], left: str, collected: int
) -> None:
    ranges = [{"topic": topic, "last": 2}, {"topic": topic, "offset": 4}]
    peer.post("/api/subscriptions/ack", {**aim, "ranges": ranges})
    moved = peer.post("/api/subscriptions/move", {**aim, **to})
    assert (moved["topics"], moved["collected"]) == (1, collected)
    assert fetch(peer, aim) == list(left)


def test_a_time_is_that_of_a_message(peer: Peer, topic: str, aim: dict[str, str]) -> None:
    wait_until(lambda: datetime.now(UTC).isoformat() > peer.get(messages_of(topic))["messages"][-1]["time"])
    (offset,) = [peer.publish(topic, "later")["first"]]
    time = peer.get(messages_of(topic), offset=offset)["messages"][0]["time"]
    assert peer.texts(topic, time=time) == ["later"]
    peer.post("/api/subscriptions/move", {**aim, "time": time})
    assert fetch(peer, aim) == ["later"]


def test_what_is_gone_is_said(peer: Peer) -> None:
    """A topic that keeps nothing: what everybody has is collected."""
    topic, aim = "gone/1", {"client": "g", "filter": "gone/1"}
    peer.post("/api/subscriptions", aim)
    peer.publish(topic, *"abc")
    peer.post("/api/subscriptions/ack", {**aim, "ranges": [{"topic": topic, "last": 2}]})
    wait_until(lambda: peer.get(topic_path(topic))["first"] == 3)
    moved = peer.post("/api/subscriptions/move", {**aim, "offset": 1})
    assert moved == {"topics": 1, "collected": 2, "moved": [{"topic": topic, "next": 3, "collected": 2}]}
    assert fetch(peer, aim) == ["c"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"to": "earliest", "offset": 1}, 400),
        ({"to": "somewhere"}, 400),
        ({"offset": 7}, 409),
        ({"offset": -1}, 400),
        ({"offset": True}, 400),
        ({"time": "yesterday"}, 400),
        ({"to": "earliest", "topic": "no/such"}, 404),
        ({"to": "earliest", "door": "none"}, 400),
        ({"to": "earliest", "client": "nobody"}, 404),
        ({"to": "earliest", "tpoic": "x"}, 400),
    ],
)
def test_what_cannot_be_moved_to_is_refused(
    peer: Peer, aim: dict[str, str], body: dict[str, object], status: int
) -> None:
    answer = peer.ask("POST", "/api/subscriptions/move", {**aim, **body})
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json["status"] == status
    assert answer.json["detail"]
    assert fetch(peer, aim) == list("abcde")


def test_a_subscription_ends(peer: Peer, topic: str, aim: dict[str, str]) -> None:
    assert peer.ask("DELETE", "/api/subscriptions", **aim).status == 200
    assert peer.ask("DELETE", "/api/subscriptions", **aim).status == 404
    assert peer.ask("GET", "/api/subscriptions/messages", **aim).status == 404


def test_pages_have_everybody_once(peer: Peer, topic: str) -> None:
    names = [f"p{number}-{topic}" for number in range(5)]
    for name in names:
        peer.post("/api/subscriptions", {"client": name, "filter": f"{topic}/#"})
    for path, what in (("/api/subscriptions", "subscriptions"), ("/api/clients", "clients")):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = peer.get(path, limit=2, after=after)
            found += [one["client"] for one in page[what]]
            after = page["after"]
        assert sorted(name for name in found if name in names) == names


def test_a_client_of_another_door_is_moved_too(peer: Peer, serving_zeromq: str, topic: str) -> None:
    peer.publish(topic, "x")
    aim = {"client": serving_zeromq, "door": "zeromq", "filter": topic}
    assert fetch(peer, aim) == ["x"]
    peer.post("/api/subscriptions/move", {**aim, "to": "latest"})
    assert fetch(peer, aim) == []


def test_subscriptions_are_searched_by_client_and_filter(peer: Peer, topic: str) -> None:
    for number in range(4):
        peer.post("/api/subscriptions", {"client": f"Reader{number}", "filter": f"{topic}/{number}"})
        if number:
            peer.publish(f"{topic}/{number}", *"x" * number)
    for sort in ("client", "behind", "seconds"):
        for search, wanted in (
            (f"{topic}/2", {2}),
            ("readeR3", {3}),
            (f"{topic}/", {0, 1, 2, 3}),
            ("nobody", set()),
        ):
            page = peer.get("/api/subscriptions", sort=sort, search=search, limit=4)["subscriptions"]
            found = {one["client"] for one in page if one["filter"].startswith(f"{topic}/")}
            assert found == {f"Reader{number}" for number in wanted}, (sort, search)
    furthest = peer.get("/api/subscriptions", sort="behind", search=f"{topic}/", limit=2)["subscriptions"]
    assert [one["behind"] for one in furthest] == [3, 2]
