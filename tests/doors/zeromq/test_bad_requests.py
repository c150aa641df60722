"""What is no request, or cannot be carried out, is answered with the reason in either dialect."""

import json

import pytest

from stafeta.doors.zeromq.json_dialect import TYPES
from tests.doors.zeromq.peers import Peer, put, request, texts

# --- text dialect


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "'' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"HELLO", "'HELLO' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"login", "'login' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b" LOGIN", "'' is not a request; the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK."),
        (b"LOGIN me", "LOGIN takes nothing more, and got 1 words."),
        (b"SUB", "SUB takes an id and a topic, and got 0 words."),
        (b"UNSUB a", "UNSUB takes an id and a topic, and got 1 words."),
        (b"UNSUB a b c", "UNSUB takes an id and a topic, and got 3 words."),
        (b"GET a", "GET takes an id and a topic, and got 1 words."),
        (b"GET a b c", "GET takes an id and a topic, and got 3 words."),
        (b"GET a  b", "GET takes an id and a topic, and got 3 words."),
        (b"PUT", "PUT takes a topic and data: PUT <topic> <data>."),
        (b"PUT t", "PUT takes a topic and data: PUT <topic> <data>."),
        (b"ACK a t", "ACK takes an id, a topic and message ids separated by commas, and got 2 words."),
        (b"ACK a t 1, 2", "ACK takes an id, a topic and message ids separated by commas, and got 4 words."),
        (b"ACK a t 1,,2", "'' is not a message id; ACK takes numbers separated by commas."),
        (b"ACK a t one", "'one' is not a message id; ACK takes numbers separated by commas."),
        (b"ACK a t -1", "'-1' is not a message id; ACK takes numbers separated by commas."),
        ("ACK a t ²".encode(), "'²' is not a message id; ACK takes numbers separated by commas."),
        (
            b"ACK a t " + b"9" * 400,
            f"'{'9' * 20}' is not a message id; ACK takes numbers separated by commas.",
        ),
        (b"PUT t \xff", "The request is not UTF-8: byte 7 cannot be read."),
        (b"SUB  t", "The client id is empty."),
        (b"SUB devices/C1 t", "The client id 'devices/C1' is a client's of another door; choose another."),
        (b"GET frames/1 t", "The client id 'frames/1' is a client's of another door; choose another."),
    ],
)
def test_anything_else_is_a_bad_request_that_says_why(peer: Peer, wrong: bytes, why: str) -> None:
    assert peer.ask(wrong) == f"BAD_REQUEST {why}"
    assert peer.ask("LOGIN").startswith("LOGIN:")


def test_a_client_id_that_is_too_long_is_a_bad_request(peer: Peer, topic: str) -> None:
    assert peer.ask(f"SUB {'i' * 255} {topic}") == "ACK"
    assert peer.ask(f"SUB {'i' * 256} {topic}").startswith("BAD_REQUEST The client id ")


def test_more_ids_than_are_allowed_at_once_are_a_bad_request(dealer: Peer, topic: str) -> None:
    reply = dealer.ask(f"ACK a {topic} {','.join(['1'] * 100_001)}")
    assert reply == "BAD_REQUEST ACK has 100001 ids; at most 100000 are allowed at once."


# --- JSON dialect


def test_what_cannot_be_is_refused(peer: Peer, topic: str) -> None:
    def put_refused(name: str) -> str:
        return peer.refused("PUT", name, "a", counter=1, publication="x")

    missing = f"The topic '{topic}' does not exist. Subscribing to it creates it."
    assert put_refused(topic) == missing
    assert peer.refused("GET", topic, "a", last_publication_id=0) == missing
    assert peer.refused("UNSUB", topic, "a") == missing
    assert peer.refused("ACK", topic, "a", ids=[1]) == missing
    peer.acked("SUB", topic, "b")
    put(peer, topic, "b", 1, "one")
    other = f"Client 'a' has no subscription to '{topic}'."
    assert peer.refused("GET", topic, "a", last_publication_id=0) == other
    assert peer.refused("UNSUB", topic, "a") == other
    assert peer.refused("ACK", topic, "a", ids=[1]) == other
    too_far = f"Topic '{topic}' has no message 2 yet; its last is 1."
    assert peer.refused("GET", topic, "b", last_publication_id=2) == too_far
    assert peer.refused("ACK", topic, "b", last_publication_id=2) == too_far
    assert peer.refused("ACK", topic, "b", ids=[1, 2]) == too_far
    assert texts(peer, topic, "b") == ["one"]
    assert "has white space in it" in peer.refused("SUB", "two words", "a")
    assert "has white space in it" in put_refused("two words")
    assert "only a subscription's filter may have" in put_refused("a/+")
    assert "client id is empty" in peer.refused("SUB", topic, "")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "The request is not JSON: "),
        ('{"type": "PUT"} and more', "The request is not JSON: "),
        (b'{"type": "\xff"}', "The request is not JSON: "),
        ('{"type": "\\ud800"}', "The request is not JSON: "),
        ("{}", f'"type" is None; it must be one of {TYPES}.'),
        (request("WAIT", "", "a", topics="t"), '"topics" must be a list of at most 1000 strings.'),
        (request("WATCH", "", "a", filters=["t", 1]), '"filters" must be a list of at most 1000 strings.'),
        (
            request("WATCH", "", "devices/a", filters=["two words"]),
            "The topic 'two words' has white space in it",
        ),
        (request("READ", "t"), '"last" must be a whole number of at least 1.'),
        (request("READ", "t", **{"from": 0}), '"from" must be a whole number of at least 1.'),
        (request("SUBSCRIPTIONS", after=["a"]), '"after" must be a client and a filter.'),
        (
            request("PUT", "t", "a", sequence=1, publications=["x"], create=1),
            '"create" must be true or false.',
        ),
        ('{"type": "put"}', "\"type\" is 'put'; it must be one of"),
        ('{"type": 1}', '"type" is 1; it must be one of'),
        ('{"type": ' + "[" * 1000 + "]" * 1000 + "}", '"type" is [[[[[['),
        ('{"type": "' + "x" * 1_000_000 + '"}', '"type" is \'xxxxxxxxx'),
        ('{"type": "SUB", "body": []}', '"body" must be an object.'),
        ('{"type": "SUB", "topic": "t"}', '"client_id" must be a string.'),
        ('{"type": "SUB", "client_id": "a"}', '"topic" must be a string.'),
        ('{"type": "SUB", "client_id": true, "topic": "t"}', '"client_id" must be a string.'),
        (request("PUT", "t", "a", counter=1), 'PUT needs "publication" in its body.'),
        (request("PUT", "t", "a", counter="1", publication="x"), '"counter" must be a whole number.'),
        (request("PUT", "t", "a", counter=1.5, publication="x"), '"counter" must be a whole number.'),
        (request("PUT", "t", "a", counter=1 << 63, publication="x"), '"counter" must be a whole number.'),
        (request("GET", "t", "a"), '"last_publication_id" must be a whole number.'),
        (request("GET", "t", "a", last_publication_id=None), '"last_publication_id" must be a whole number.'),
        (request("GET", "t", "a", last_publication_id=True), '"last_publication_id" must be a whole number.'),
        (
            request("GET", "t", "a", last_publication_id=0, limit=0),
            '"limit" must be a whole number of at least',
        ),
        (request("GET", "t", "a", last_publication_id=0, wait="1"), '"wait" must be a number of seconds.'),
        (request("GET", "t", "a", last_publication_id=0, wait=-1), '"wait" must be a number of seconds.'),
        (request("ACK", "t", "a"), 'ACK needs "ids"'),
        (request("ACK", "t", "a", ids=[1, "2"]), 'ACK needs "ids"'),
        (request("ACK", "t", "a", ids=[0]), 'ACK needs "ids"'),
        (request("PUT", "t", "a", sequence=0, publications=["x"]), '"sequence" must be a whole number of at'),
        (
            request("PUT", "t", "a", sequence=1, publications=[]),
            '"publications" must be a list with something',
        ),
        (
            request("PUT", "t", "a", sequence=1, publication="x"),
            '"publications" must be a list with something',
        ),
        (
            request("PUT", "t", "a", sequence=1, kind="int", publications=["1", [2]]),
            '"publications" must be strings, unless their kind is json.',
        ),
        (
            request("PUT", "t", "a", publication="x", kind="text"),
            "'text' is not a kind of message; the kinds",
        ),
        (
            request("PUT", "t", "a", publication="x", kind=[[]]),
            "[[]] is not a kind of message; the kinds are",
        ),
        (request("PUT", "t", "a", publication="x", kind="int"), "'x' is not of the kind int."),
        (request("PUT", "t", "a", publication="{", kind="json"), "'{' is not of the kind json."),
        (request("PUT", "t", "a", publication="x", encoding="hex"), "\"encoding\" is 'hex'; it must be"),
        (request("PUT", "t", "a", publication="?", encoding="base64"), "A publication is not base64: "),
        (
            '{"type": "PUT", "topic": "t", "client_id": "a", "body": {"publication": '
            + "[" * 900
            + "]" * 900
            + "}}",
            "A publication cannot be stored: ",
        ),
        (request("TOPICS", filter="two words"), "The topic 'two words' has white space in it"),
    ],
)
def test_a_malformed_request_is_refused_with_the_reason(peer: Peer, body: str | bytes, why: str) -> None:
    reply = peer.ask(body)
    told = json.loads(reply)
    assert told["type"] == "NAK"
    assert told["body"]["error_message"].startswith(why)
    assert len(reply) < 1000
    assert peer.acked("REQUEST_ID")


def test_a_message_over_the_limit_is_refused_with_its_size(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    over = "x" * ((8 << 20) + 1)
    assert str(len(over)) in peer.refused("PUT", topic, "p", counter=1, publication=over)
    assert str(len(over)) in peer.refused("PUT", topic, "p", sequence=1, publications=["fits", over])
    assert texts(peer, topic, "a") == []
