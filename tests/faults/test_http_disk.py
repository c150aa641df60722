"""A full disk at the HTTP door: problem details that say so, nothing half done, and as before once there is room."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.brokers import BrokerProcess
from tests.doors.http.peers import Answer, Peer, messages_of, topic_path
from tests.faults.test_disk import small_disk
from tests.waiting import wait_until

__all__ = ["small_disk"]

KEEP = ("--set", 'topics."#".keep=1000000000 messages')
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
LARGE = "x" * 20_000


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """No page of it is left."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    try:
        yield
    finally:
        (disk / "ballast").unlink()


def assert_full(answer: Answer) -> None:
    assert answer.status == 507, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "1"
    assert answer.json["type"] == "/api/docs#StoreFull"
    assert answer.json["title"] == "Insufficient Storage"
    assert answer.json["detail"].startswith("No room is left for the data folder"), answer.json


def arrow(*texts: str) -> bytes:
    table = pa.table({"payload": [text.encode() for text in texts]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


Request = tuple[str, str, object, dict[str, str], dict[str, str]]  # method, path, body, headers, parameters
AIM = {"client": "c", "filter": "t"}
PUBLISH: dict[str, Request] = {
    "one": ("POST", messages_of("t"), b"one" + LARGE.encode(), {"Content-Type": "text/plain"}, {}),
    "many": (
        "POST",
        messages_of("t"),
        [{"payload": f"many {n} {LARGE}"} for n in range(9)],
        {},
        {"batch": "true"},
    ),
    "arrow": ("POST", messages_of("t"), arrow(f"arrow 1 {LARGE}", "arrow 2"), ARROW, {}),
}
ONCE: dict[str, Request] = {
    f"{name} once": (method, path, body, {**headers, "Idempotency-Key": f"key of {name}"}, parameters)
    for name, (method, path, body, headers, parameters) in PUBLISH.items()
}
CHANGES: dict[str, Request] = {
    "make a topic": ("PUT", topic_path("new"), {}, {}, {}),
    "retention": ("PUT", topic_path("t"), {"keep": {"messages": 1000}}, {}, {}),
    "acknowledge": ("POST", "/api/subscriptions/ack", {**AIM, "ranges": [{"topic": "t", "last": 2}]}, {}, {}),
    "move": ("POST", "/api/subscriptions/move", {**AIM, "to": "latest"}, {}, {}),
    "subscribe": ("POST", "/api/subscriptions", {"client": "d", "filter": "t"}, {}, {}),
    "unsubscribe": ("DELETE", "/api/subscriptions", None, {"Content-Type": "application/json"}, AIM),
    "empty": ("DELETE", topic_path("other"), None, {"Content-Type": "application/json"}, {"force": "true"}),
}


def ask(peer: Peer, request: Request) -> Answer:
    method, path, body, headers, parameters = request
    return peer.ask(method, path, body, headers, **parameters)


def state(peer: Peer) -> dict[str, Any]:
    """All that the requests may change."""
    topics = [one["topic"] for one in peer.get("/api/topics")["topics"]]
    return {
        "topics": {name: peer.get(topic_path(name)) for name in topics},
        "texts": {name: peer.texts(name, limit=10_000) for name in topics},
        "subscriptions": [
            (one["client"], one["filter"], one["behind"])
            for one in peer.get("/api/subscriptions")["subscriptions"]
        ],
        "cursors": peer.get("/api/subscriptions/cursors", **AIM)["cursors"],
    }


def test_nothing_is_half_done_and_what_is_sent_again_is_stored_once(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "data", *KEEP, doors=("http",)) as broker:
        with Peer(broker.door("http")) as peer:
            peer.post("/api/subscriptions", AIM)
            peer.publish("t", "1", "2", "3")
            peer.publish("other", "1")
            before = state(peer)
            with full(small_disk):
                for request in (PUBLISH | ONCE | CHANGES).values():
                    assert_full(ask(peer, request))
                    assert state(peer) == before, request[:2]
                assert peer.ask("GET", "/readyz").status == 503
                assert peer.ask("GET", "/healthz").status == 200
            wait_until(lambda: peer.ask("POST", messages_of("after"), b"x").status == 201)
            first = {name: ask(peer, request) for name, request in ONCE.items()}
            assert [one.status for one in first.values()] == [201] * 3
            for name, request in ONCE.items():
                again = ask(peer, request)
                assert (again.status, again.json) == (200, {**first[name].json, "repeated": True})
            once = [text.partition("x")[0].strip() for text in peer.texts("t")]
            assert once == ["1", "2", "3", "one", *(f"many {n}" for n in range(9)), "arrow 1", "arrow 2"]
            for name, request in CHANGES.items():
                assert ask(peer, request).status in (200, 201), name
        broker.restart()
        with Peer(broker.door("http")) as peer:
            found = peer.get(topic_path("t"))
            assert (found["messages"], found["keep"]["messages"]) == (15, 1000)
            assert [one["client"] for one in peer.get("/api/subscriptions")["subscriptions"]] == ["d"]
            assert peer.ask("GET", topic_path("other")).status == 404
        assert "Traceback" not in broker.stderr


def test_of_many_messages_those_before_the_first_that_found_no_room_are_stored(small_disk: Path) -> None:
    """Also where small ones behind it would find some."""
    (small_disk / "ballast").write_bytes(bytes(2 << 20))
    texts = [f"{number} {LARGE * 3}" for number in range(120)] + [
        str(number) for number in range(120, 10_000)
    ]
    body = b"\n".join(json.dumps({"payload": text}).encode() for text in texts)
    lines = {"Content-Type": "application/x-ndjson"}
    with (
        BrokerProcess(small_disk / "data", *KEEP, doors=("http",)) as broker,
        Peer(broker.door("http")) as peer,
    ):
        assert_full(peer.ask("POST", messages_of("t"), body, lines))
        stored: list[str] = []
        page: dict[str, Any] = {"next": 1, "end": 2}
        while page["next"] < page["end"]:
            page = peer.get(messages_of("t"), offset=page["next"], limit=10_000)
            stored += [one["payload"] for one in page["messages"]]
        assert 0 < len(stored) < 120
        assert stored == texts[: len(stored)]
