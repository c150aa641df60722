"""The JSON dialect, as docs/protocols/zeromq.md has it, through real sockets."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import GET_REPLY, Peer, ack_body, first_kept, put, request, sequence, texts
from tests.waiting import wait_until

# --- the table


def test_request_id_gives_a_new_string_each_time(peer: Peer) -> None:
    first, second = peer.acked("REQUEST_ID"), peer.acked("REQUEST_ID")
    assert first.keys() == {"id"}
    assert int(second["id"]) == int(first["id"]) + 1


def test_ids_are_not_given_again_after_a_restart(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        assert peer.acked("REQUEST_ID") == {"id": "1"}
    broker.restart()
    with Peer(broker.address) as peer:
        assert peer.acked("REQUEST_ID") == {"id": "2"}


def test_subscribing_tells_the_last_id_before(peer: Peer, topic: str) -> None:
    assert peer.told("SUB", topic, "a") == {"type": "ACK", "body": {"last_publication_id": 0}}
    put(peer, topic, "p", 1, "one")
    put(peer, topic, "p", 2, "two")
    assert peer.acked("SUB", topic, "b", counter=7) == {"last_publication_id": 2}
    assert put(peer, topic, "p", 3, "three") == 3
    assert texts(peer, topic, "b", 2) == ["three"]
    assert texts(peer, topic, "a") == ["one", "two", "three"]


def test_unsubscribing_has_no_body_in_its_reply(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    assert peer.told("UNSUB", topic, "a") == {"type": "ACK"}


def test_getting_gives_the_first_message_after_an_id_and_acknowledges_up_to_it(
    peer: Peer, topic: str
) -> None:
    peer.acked("SUB", topic, "a")
    for number, text in enumerate(["one", "", 'three: ș🙂 " \\ \0'], 1):
        assert put(peer, topic, "p", number, text) == number
    for _ in range(2):
        assert peer.acked("GET", topic, "a", last_publication_id=0) == {
            "publication": "one",
            "publication_id": 1,
        }
    assert peer.acked("GET", topic, "a", last_publication_id=1) == {"publication": "", "publication_id": 2}
    wait_until(lambda: first_kept(peer, topic) == 2)
    assert peer.acked("GET", topic, "a", last_publication_id=2)["publication"] == 'three: ș🙂 " \\ \0'
    nothing = peer.acked("GET", topic, "a", last_publication_id=3)
    assert nothing["publication_id"] == -1
    wait_until(lambda: first_kept(peer, topic) == 4)
    # An older id than before is a retry; what is gone stays gone.
    assert peer.acked("GET", topic, "a", last_publication_id=1)["publication_id"] == -1
    assert peer.acked("GET", topic, "a", last_publication_id=-1)["publication_id"] == -1


def test_a_client_id_may_be_a_number(peer: Peer, topic: str) -> None:
    reply = json.loads(peer.ask(json.dumps({"type": "SUB", "topic": topic, "client_id": 12, "body": {}})))
    assert ack_body(reply) == {"last_publication_id": 0}
    put(peer, topic, "p", 1, "one")
    assert texts(peer, topic, "12") == ["one"]


def test_a_body_may_be_left_out_or_null(peer: Peer, topic: str) -> None:
    for more in ("", ', "body": null'):
        reply = json.loads(peer.ask(f'{{"type": "SUB", "topic": "{topic}", "client_id": "a"{more}}}'))
        assert ack_body(reply) == {"last_publication_id": 0}


def test_a_publication_that_is_no_string_is_kept_as_json(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    peer.acked("PUT", topic, "p", counter=1, publication={"a": [1, 2.5, None, True]})
    (one,) = peer.acked("GET", topic, "a", last_publication_id=0, limit=9)["publications"]
    assert (one["kind"], json.loads(one["text"])) == ("json", {"a": [1, 2.5, None, True]})


# --- GET with a limit


def test_a_limit_gives_several_with_kind_and_time(peer: Peer, topic: str) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=1)
    peer.acked("SUB", topic, "a")
    kinds = {"int": "-12", "short_real": "1.50", "float": "0.125", "string": "text", "json": "[1]"}
    for kind, text in kinds.items():
        peer.acked("PUT", topic, "p", publication=text, kind=kind)
    peer.acked("PUT", topic, "p", publication="/w==", kind="bytes", encoding="base64")
    found: list[dict[str, Any]] = peer.acked("GET", topic, "a", last_publication_id=0, limit=100)[
        "publications"
    ]
    assert [(one["id"], one["kind"], one["text"]) for one in found] == [
        *((id_, kind, text) for id_, (kind, text) in enumerate(kinds.items(), 1)),
        (6, "bytes", "/w=="),
    ]
    assert [one.get("encoding") for one in found] == [None] * 5 + ["base64"]
    times = [datetime.fromisoformat(one["time"]) for one in found]
    assert begin <= times[0] <= times[-1] <= datetime.now(UTC) + timedelta(seconds=1)
    assert times == sorted(times)
    assert peer.acked("GET", topic, "a", last_publication_id=2, limit=2)["publications"] == found[2:4]
    assert peer.acked("GET", topic, "a", last_publication_id=6, limit=2) == {"publications": []}


@pytest.mark.parametrize("payload", ["plain", "\x01\x02", '"quoted"', "ș🙂"])
def test_a_reply_has_an_upper_size_and_the_rest_comes_with_the_next(
    peer: Peer, topic: str, payload: str
) -> None:
    peer.acked("SUB", topic, "a")
    sent = [f"{number} {payload * (number % 30)}" for number in range(200)]
    sequence(peer, topic, "p", 1, *sent)
    received: list[str] = []
    while True:
        reply = peer.ask(request("GET", topic, "a", last_publication_id=len(received), limit=1000))
        assert len(reply.encode()) <= GET_REPLY
        found = ack_body(json.loads(reply))["publications"]
        if not found:
            break
        received += [one["text"] for one in found]
    assert received == sent


def test_a_message_longer_than_a_reply_comes_whole(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    sequence(peer, topic, "p", 1, "l" * 3 * GET_REPLY, "short")
    (one,) = peer.acked("GET", topic, "a", last_publication_id=0, limit=10)["publications"]
    assert one["text"] == "l" * 3 * GET_REPLY


# --- GET with a wait


def test_waiting_ends_with_the_message(small: BrokerProcess, dealer: Peer, topic: str) -> None:
    dealer.acked("SUB", topic, "a")
    dealer.send(request("GET", topic, "a", last_publication_id=0, wait=20))
    dealer.send(request("GET", topic, "a", last_publication_id=1, limit=5, wait=20))
    with Peer(small.address) as other:
        for number in (1, 2):
            put(other, topic, "p", number, f"number {number}")
            body = ack_body(json.loads(dealer.receive()))
            if number == 1:
                assert body == {"publication": "number 1", "publication_id": 1}
            else:
                assert [one["text"] for one in body["publications"]] == ["number 2"]


def test_waiting_ends_with_the_time(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    begin = time.monotonic()
    assert peer.acked("GET", topic, "a", last_publication_id=0, wait=0.2)["publication_id"] == -1
    assert peer.acked("GET", topic, "a", last_publication_id=0, wait=0.2, limit=1) == {"publications": []}
    assert time.monotonic() - begin >= 0.39  # timers are as exact as a millisecond


def test_waiting_through_a_filter_notices_a_topic_that_is_new(
    small: BrokerProcess, dealer: Peer, topic: str
) -> None:
    start = dealer.acked("SUB", f"{topic}/+", "a")["last_publication_id"]
    dealer.send(request("GET", f"{topic}/+", "a", last_publication_id=start, wait=20))
    with Peer(small.address) as other:
        put(other, f"{topic}/new", "p", 1, "hello")
    body = ack_body(json.loads(dealer.receive()))
    assert (body["publication"], body["topic"]) == ("hello", f"{topic}/new")


# --- ACK


def test_acknowledging_single_messages_and_all_up_to_one(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    sequence(peer, topic, "p", 1, *"abcdef")
    assert peer.told("ACK", topic, "a", ids=[5, 2]) == {"type": "ACK"}
    assert [text for _, text in peer.got("a", topic)] == ["a", "c", "d", "f"]
    assert peer.acked("SUB", topic, "a") == {"last_publication_id": 0}
    assert peer.told("ACK", topic, "a", last_publication_id=3) == {"type": "ACK"}
    assert [text for _, text in peer.got("a", topic)] == ["d", "f"]
    assert peer.told("ACK", topic, "a", ids=[]) == {"type": "ACK"}
    assert peer.told("ACK", topic, "a", last_publication_id=-1) == {"type": "ACK"}
    assert peer.told("ACK", topic, "a", ids=[4, 4, 5]) == {"type": "ACK"}
    assert peer.acked("SUB", topic, "a") == {"last_publication_id": 5}


# --- TOPICS


def test_topics_are_told_by_name_a_page_at_a_time(peer: Peer, topic: str) -> None:
    names = [f"{topic}/{letter}" for letter in "abc"]
    for name in reversed(names):
        peer.acked("SUB", name, "x")
    peer.acked("SUB", names[0], "y")
    put(peer, names[0], "p", 1, "one")
    lines = peer.acked("TOPICS", filter=f"{topic}/+")["topics"]
    assert [(one["name"], one["first"], one["next"], one["subscriptions"]) for one in lines] == [
        (names[0], 1, 2, 2),
        (names[1], 1, 1, 1),
        (names[2], 1, 1, 1),
    ]
    assert peer.acked("TOPICS", filter=f"{topic}/+", limit=2)["topics"] == lines[:2]
    assert peer.acked("TOPICS", filter=f"{topic}/+", after=names[1])["topics"] == lines[2:]
    assert {one["name"] for one in peer.acked("TOPICS")["topics"]} >= set(names)


def test_at_most_a_thousand_topics_are_told_at_a_time(dealer: Peer, topic: str) -> None:
    names = [f"{topic}/{number:04}" for number in range(1100)]
    for name in names:
        dealer.send(request("SUB", name, "x"))
    for _ in names:
        dealer.receive()
    page = dealer.acked("TOPICS", filter=f"{topic}/+", limit=5000)["topics"]
    assert [one["name"] for one in page] == names[:1000]
    rest = dealer.acked("TOPICS", filter=f"{topic}/+", after=names[999])["topics"]
    assert [one["name"] for one in rest] == names[1000:]


# --- coming and going


def test_a_topics_ids_go_on_after_it_was_removed_also_after_a_restart(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.acked("SUB", "t", "a")
        assert put(peer, "t", "p", 1, "one") == 1
        peer.told("UNSUB", "t", "a")
        assert peer.acked("TOPICS") == {"topics": []}
        assert peer.acked("SUB", "t", "a") == {"last_publication_id": 1}
        assert put(peer, "t", "p", 2, "two") == 2
        peer.told("UNSUB", "t", "a")
    broker.restart()
    with Peer(broker.address) as peer:
        assert peer.refused("PUT", "t", "p", counter=3, publication="three").startswith(
            "The topic 't' does not"
        )
        assert peer.acked("SUB", "t", "a") == {"last_publication_id": 2}
        assert put(peer, "t", "p", 3, "three") == 3
        assert texts(peer, "t", "a", 2) == ["three"]
