"""Topics and their messages over HTTP: what is published, read, listed, made and emptied."""

from base64 import b64encode

import pytest

from tests.doors.http.peers import Peer, messages_of


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
