"""Publishing over HTTP: many at once, once with a key, and what is refused."""

import json
import threading
import tracemalloc
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from stafeta.doors.http.incoming import MAX_MESSAGES, many_messages
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidRequest
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Answer, Peer, Place, messages_of, topic_path

LINES = {"Content-Type": "application/x-ndjson"}


def test_lines_are_messages(peer: Peer, topic: str) -> None:
    body = b"""
        {"payload": "a"}

        {"payload": "/w==", "encoding": "base64"}
        {"value": {"b": [1]}}
        {"payload": "1", "kind": "int"}"""
    assert peer.ask("POST", messages_of(topic), body, LINES).json["count"] == 4
    answer = peer.ask("GET", messages_of(topic), headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(line) for line in answer.body.splitlines()]
    assert [(one["kind"], one["payload"]) for one in found] == [
        ("string", "a"),
        ("bytes", "/w=="),
        ("json", '{"b":[1]}'),
        ("int", "1"),
    ]


def test_messages_are_read_as_arrow(peer: Peer, topic: str) -> None:
    peer.publish(topic, "a", "ș")
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = peer.ask("GET", messages_of(topic), None, arrow)
    assert (answer.headers["content-type"], answer.headers["x-next-offset"]) == (arrow["Accept"], "3")
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table["payload"].to_pylist() == [b"a", "ș".encode()]
    assert table["offset"].to_pylist() == [1, 2]
    assert table["topic"].to_pylist() == [topic, topic]
    empty = peer.ask("GET", messages_of(topic), None, arrow, offset=3)
    assert pa.ipc.open_stream(empty.body).read_all().num_rows == 0
    assert peer.ask("GET", messages_of(topic), None, {"Accept": "image/png"}).status == 406


def test_many_are_stored_in_their_order(peer: Peer, topic: str) -> None:
    texts = [str(number) for number in range(3000)]
    assert peer.publish(topic, *texts)["last"] == 3000
    found: list[str] = []
    offset = 1
    while offset <= 3000:
        page = peer.get(messages_of(topic), offset=offset, limit=1000)
        found += [one["payload"] for one in page["messages"]]
        offset = page["next"]
    assert found == texts
    assert peer.texts(topic, last=2) == ["2998", "2999"]


@pytest.mark.parametrize(
    ("body", "type_", "parameters"),
    [
        (b"{", "application/json", {}),
        (b"\xff", "text/plain", {}),
        (b"x", "text/plain", {"kind": "int"}),
        (b"x", "text/plain", {"kind": "none"}),
        (b"{}", "application/json", {"batch": "true"}),
        (b"[]", "application/json", {"batch": "true"}),
        (b"[1]", "application/json", {"batch": "true"}),
        (b'[{"payload": 1}]', "application/json", {"batch": "true"}),
        (b'[{"payload": "x", "kind": "float"}]', "application/json", {"batch": "true"}),
        (b'[{"payload": "x", "more": 1}]', "application/json", {"batch": "true"}),
        (b'[{"payload": "!", "encoding": "base64"}]', "application/json", {"batch": "true"}),
        (b'[{"value": 1, "kind": "int"}]', "application/json", {"batch": "true"}),
        (b'{"payload": "a"}\n{', "application/x-ndjson", {}),
        (b"x", "text/plain", {"unknown": "1"}),
        (b"x", "text/plain", {"batch": "perhaps"}),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_stored(
    peer: Peer, topic: str, body: bytes, type_: str, parameters: dict[str, str]
) -> None:
    answer = peer.ask("POST", messages_of(topic), body, {"Content-Type": type_}, **parameters)
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["detail"]
    assert peer.ask("GET", messages_of(topic)).status == 404
    assert peer.get("/healthz")  # the connection goes on, or a new one does


@pytest.mark.parametrize(
    ("lines", "one", "ends"), [(True, b'{"value":1}\n', (b"", b"")), (False, b'{"value":1},', (b" [", b"]"))]
)
def test_so_many_messages_go_in_one_request(lines: bool, one: bytes, ends: tuple[bytes, bytes]) -> None:
    first, last = ends
    found = many_messages(first + (one * MAX_MESSAGES)[:-1] + last, lines=lines)
    assert found.count == MAX_MESSAGES
    with pytest.raises(HttpProblem) as caught:
        many_messages(first + (one * (MAX_MESSAGES + 1))[:-1] + last + b"\n", lines=lines)
    assert (caught.value.status, str(MAX_MESSAGES) in str(caught.value)) == (413, True)


def test_commas_within_messages_are_no_messages() -> None:
    one = b'{"value":[%b]}' % b",".join([b"1"] * 60_000)
    assert many_messages(b"[%b , %b]" % (one, one), lines=False).count == 2


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"[" + b"[]," * 700_000 + b"[]]", False),
        (b"\n" * 2_000_000, True),
        (b"[" * 2_000_000, False),
        (b"[" + b"," * 2_000_000, False),
        (b"," * 2_000_000, False),
        (b"\xff" + b"," * 2_000_000, False),
    ],
)
def test_a_body_of_little_things_takes_little_memory(body: bytes, lines: bool) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((HttpProblem, InvalidRequest)):
            many_messages(body, lines=lines)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_small_values_take_little_memory() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    found = many_messages(b'{"value":1}\n' * 30_000, lines=True)
    assert process.memory_info().rss - before < 40 << 20, "that is a kilobyte each"
    assert found.count == 30_000


def test_too_many_are_refused_and_nothing_is_stored(peer: Peer, topic: str) -> None:
    answer = peer.ask("POST", messages_of(topic), b"{}\n" * (MAX_MESSAGES + 1), LINES)
    assert answer.status == 413
    assert "Send them in several" in answer.json["detail"]
    assert peer.ask("GET", messages_of(topic)).status == 404


@pytest.mark.parametrize("name", ["a b", "a/+", "#", "$sys/own", "x" * 256, "a\x00b"])
def test_a_name_that_is_none_is_refused(peer: Peer, name: str) -> None:
    assert peer.ask("POST", messages_of(name), b"x").status == 400


def test_a_path_that_is_no_text_is_refused(peer: Peer) -> None:
    assert peer.ask("POST", "/api/topics/%ff/messages", b"x").status == 400
    assert peer.ask("GET", "/api/topics?filter=%ff").status == 400


# --- once


def once(peer: Peer, topic: str, key: str, *texts: str) -> Answer:
    messages = [{"payload": text} for text in texts]
    return peer.ask("POST", messages_of(topic), messages, {"Idempotency-Key": key}, batch="true")


def test_a_retry_with_the_same_key_is_answered_and_not_stored(peer: Peer, topic: str) -> None:
    peer.publish(topic, "before")
    first = once(peer, topic, "k", "a", "b")
    again = once(peer, topic, "k", "a", "b")
    assert (first.status, again.status) == (201, 200)
    assert first.json == {"topic": topic, "first": 2, "last": 3, "count": 2, "repeated": False}
    assert again.json == {**first.json, "repeated": True}
    assert once(peer, topic, "other", "a", "b").json["first"] == 4
    assert peer.texts(topic) == ["before", "a", "b", "a", "b"]
    assert once(peer, f"{topic}/2", "k", "a").status == 201  # a key is one of a topic


def test_a_key_is_not_for_other_messages(peer: Peer, topic: str) -> None:
    once(peer, topic, "k", "a")
    assert once(peer, topic, "k", "b").status == 422
    assert peer.texts(topic) == ["a"]


def test_two_at_once_with_one_key_are_one(place: Place, peer: Peer, topic: str) -> None:
    answers: list[Answer] = []

    def publish() -> None:
        with Peer(place) as another:
            answers.append(once(another, topic, "k", *"abc"))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert {answer.json["first"] for answer in answers} == {1}
    assert peer.texts(topic) == list("abc")


def test_a_key_is_remembered_by_a_broker_that_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--set", 'topics."#".keep=1d', doors=("http",)) as broker:
        with Peer(broker.door("http")) as peer:
            assert once(peer, "t", "k", *"ab").status == 201
        broker.restart()
        with Peer(broker.door("http")) as peer:
            assert once(peer, "t", "k", *"ab").json == {
                "topic": "t",
                "first": 1,
                "last": 2,
                "count": 2,
                "repeated": True,
            }
            assert peer.texts("t") == ["a", "b"]


@pytest.mark.parametrize("key", ["x" * 256, "a\x7fb"])
def test_a_key_that_is_none_is_refused(peer: Peer, topic: str, key: str) -> None:
    assert once(peer, topic, key, "a").status == 400


# --- topics


def test_a_topic_is_made_and_emptied(peer: Peer, topic: str) -> None:
    assert peer.ask("PUT", topic_path(topic)).status == 201
    assert peer.ask("PUT", topic_path(topic), {"keep_last": False}).json == {"topic": topic, "created": False}
    peer.publish(topic, *"abc")
    info = peer.get(topic_path(topic))
    assert (info["first"], info["next"], info["messages"], info["keeps_last"]) == (1, 4, 3, False)
    kept = {"seconds": 86400.0, "bytes": None, "messages": None, "rule": "kept/#", "own": False}
    assert info["keep"] == kept
    peer.post("/api/subscriptions", {"client": "holder", "filter": topic, "from": "earliest"})
    refused = peer.ask("DELETE", topic_path(topic))
    assert refused.status == 400
    assert "wait for messages" in refused.json["detail"]
    assert peer.ask("DELETE", topic_path(topic), force="true").json == {"topic": topic, "messages": 3}
    assert peer.texts(topic) == []
    assert peer.get("/api/subscriptions/messages", client="holder", filter=topic)["messages"] == []
    assert peer.ask("DELETE", "/api/subscriptions", client="holder", filter=topic).status == 200
    assert peer.publish(topic, "d")["first"] == 4  # no offset comes twice


def test_names_with_slashes_and_signs_are_topics(peer: Peer, topic: str) -> None:
    for name in (f"{topic}/messages", f"/{topic}//x/", f"{topic}/%2F?&=ș"):
        peer.ask("PUT", topic_path(name))
        peer.publish(name, "x")
        assert peer.get(topic_path(name))["topic"] == name
        assert peer.texts(name) == ["x"]
    plain = peer.ask("POST", f"/api/topics/{topic}/a/b/messages", b"x")  # slashes as they are
    assert plain.json["topic"] == f"{topic}/a/b"


def test_pages_and_searches_have_each_topic_once(peer: Peer, topic: str) -> None:
    names = sorted(f"{topic}/{number}-{'odd' if number % 2 else 'even'}" for number in range(10))
    for name in names:
        peer.publish(name, "x")

    def all_of(**parameters: object) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = peer.get("/api/topics", filter=f"{topic}/#", after=after, **parameters)
            found += [one["topic"] for one in page["topics"]]
            after = page["after"]
        return found

    assert all_of(limit=3) == all_of() == names
    assert all_of(search="ODD", limit=2) == [name for name in names if "odd" in name]
    assert all_of(search="nothing") == []
