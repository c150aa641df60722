"""The JSON dialect, as docs/protocols/zeromq.md has it, through real sockets."""

import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, ack_body, request
from tests.doors.zeromq.relays import Relay
from tests.waiting import wait_until

GET_REPLY = 4096


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short GET replies that collects at once."""
    options = ("--set", f"zeromq.get_reply={GET_REPLY}", "--set", "store.sweep=20ms")
    with BrokerProcess(tmp_path_factory.mktemp("json") / "data", *options) as process:
        yield process


@pytest.fixture(params=[zmq.REQ, zmq.DEALER], ids=["REQ", "DEALER"])
def peer(request: pytest.FixtureRequest, small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address, request.param) as peer:
        yield peer


@pytest.fixture
def dealer(small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address) as peer:
        yield peer


def put(peer: Peer, topic: str, client: str, counter: int, text: str) -> int:
    body = peer.acked("PUT", topic, client, counter=counter, publication=text)
    assert body.keys() == {"current_publication_id"}
    return int(body["current_publication_id"])


def texts(peer: Peer, topic: str, client: str, after: int = 0) -> list[str]:
    """All messages after an id, read one by one."""
    found = []
    while (one := peer.acked("GET", topic, client, last_publication_id=after))["publication_id"] != -1:
        assert one["publication_id"] > after
        after = one["publication_id"]
        found.append(one["publication"])
    return found


def first_kept(peer: Peer, topic: str) -> int:
    """The lowest id that the topic still holds."""
    (line,) = peer.acked("TOPICS", filter=topic)["topics"]
    return int(line["first"])


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


# --- NAK


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
        ("{}", '"type" is None; it must be one of REQUEST_ID, SUB, UNSUB, PUT, GET, ACK and TOPICS.'),
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


# --- counters


def test_a_repeated_counter_is_a_retry_and_answered_as_the_first_time(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    assert [put(peer, topic, "p", 41, "first") for _ in range(3)] == [1, 1, 1]
    assert put(peer, topic, "p", 42, "second") == 2
    assert put(peer, topic, "p", 41, "first") == 1
    assert texts(peer, topic, "a") == ["first", "second"]


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop], ids=["kill", "stop"])
def test_a_retry_is_recognised_after_a_restart_and_after_it_was_collected(
    tmp_path: Path, end: Callable[[BrokerProcess], object]
) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "store.sweep=20ms") as broker:
        with Peer(broker.address) as peer:
            peer.acked("SUB", "t", "a")
            assert put(peer, "t", "p", 9_999_999, "one") == 1
            assert put(peer, "t", "p", 3, "two") == 2
            peer.acked("GET", "t", "a", last_publication_id=2)
            wait_until(lambda: first_kept(peer, "t") == 3)
        end(broker)
        broker.start()
        with Peer(broker.address) as peer:
            assert put(peer, "t", "p", 3, "two") == 2
            assert put(peer, "t", "p", 9_999_999, "one") == 1
            assert put(peer, "t", "p", 4, "three") == 3
            assert texts(peer, "t", "a", 2) == ["three"]


def test_counters_drawn_at_random_are_no_retries_however_they_fall(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    chance = random.Random(5)
    counters = [10_000_000, 1, 5_000_000, *(chance.randint(1, 10_000_000) for _ in range(60)), -3, 0]
    for id_, counter in enumerate(counters, 1):
        assert put(peer, topic, "p", counter, f"number {id_}") == id_
        assert put(peer, topic, "p", counter, f"number {id_}") == id_
    assert texts(peer, topic, "a") == [f"number {id_}" for id_ in range(1, len(counters) + 1)]


def test_the_same_counter_with_another_publication_is_no_retry(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    assert put(peer, topic, "p", 7, "one") == 1
    assert put(peer, topic, "p", 7, "other") == 2
    assert put(peer, topic, "p", 7, "one") == 1
    assert put(peer, topic, "p", 7, "other") == 2
    assert texts(peer, topic, "a") == ["one", "other"]


def test_counters_are_each_clients_and_each_topics_own(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    peer.acked("SUB", f"{topic}/b", "a")
    assert put(peer, topic, "p", 1, "same") == 1
    assert put(peer, topic, "q", 1, "same") == 2
    assert put(peer, f"{topic}/b", "p", 1, "same") == 1


def test_a_put_without_a_counter_is_always_new(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    for id_ in (1, 2):
        assert peer.acked("PUT", topic, "p", publication="same") == {"current_publication_id": id_}


def test_an_id_that_somebody_counts_under_is_not_given_to_another(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.acked("SUB", "t", "reader")
        assert put(peer, "t", "1", 500, "never asked for its id") == 1
        assert put(peer, "t", "3", 1, "nor did this one") == 2
        assert peer.acked("REQUEST_ID") == {"id": "2"}
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
    with Peer(broker.address) as peer:
        assert peer.acked("REQUEST_ID") == {"id": "4"}
        assert sequence(peer, "t", "4", 1, "new") == (3, 3)


# --- lost replies


def test_a_subscription_repeated_because_its_ack_was_lost_loses_nothing(
    small: BrokerProcess, dealer: Peer, topic: str
) -> None:
    dealer.acked("SUB", topic, "early")
    put(dealer, topic, "p", 1, "before")
    with Relay(small.address) as relay:
        with Peer(relay.address, zmq.REQ) as lost:
            lost.acked("REQUEST_ID")  # so that the connection stands
            relay.swallow()
            lost.send(request("SUB", topic, "late", counter=1))
            relay.wait_until_swallowed()
        assert [put(dealer, topic, "p", number, f"after {number}") for number in (2, 3)] == [2, 3]
        with Peer(relay.address, zmq.REQ) as again:
            assert again.acked("SUB", topic, "late", counter=1) == {"last_publication_id": 1}
            assert texts(again, topic, "late", 1) == ["after 2", "after 3"]


def test_a_repeated_subscription_to_a_filter_loses_nothing(dealer: Peer, topic: str) -> None:
    first = dealer.acked("SUB", f"{topic}/#", "a")
    put(dealer, f"{topic}/x", "p", 1, "one")
    put(dealer, f"{topic}/y", "p", 1, "two")
    assert dealer.acked("SUB", f"{topic}/#", "a") == first
    assert texts(dealer, f"{topic}/#", "a", first["last_publication_id"]) == ["one", "two"]


# --- sequences


def sequence(peer: Peer, topic: str, client: str, number: int, *publications: str) -> tuple[int, int]:
    body = peer.acked("PUT", topic, client, sequence=number, publications=publications)
    assert body.keys() == {"first_publication_id", "current_publication_id"}
    return body["first_publication_id"], body["current_publication_id"]


def test_a_sequence_stores_only_what_is_new(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    assert sequence(peer, topic, "p", 1, "one", "two") == (1, 2)
    assert sequence(peer, topic, "p", 1, "one", "two") == (1, 2)
    assert sequence(peer, topic, "p", 2, "two", "three", "four") == (2, 4)
    assert sequence(peer, topic, "p", 2, "two") == (2, 2)
    put(peer, topic, "q", 1, "another's")
    assert sequence(peer, topic, "p", 5, "five") == (6, 6)
    assert sequence(peer, topic, "p", 3, "three", "four", "five") == (3, 6)
    assert texts(peer, topic, "a") == ["one", "two", "three", "four", "another's", "five"]


def test_a_sequence_that_comes_too_early_is_told_what_is_expected(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    for expected in (1, 3):
        reply = peer.told("PUT", topic, "p", sequence=7, publications=["early"])
        assert reply["type"] == "NAK"
        assert reply["body"]["expected"] == expected
        assert f"its next is {expected}" in reply["body"]["error_message"].replace("this producer's", "its")
        sequence(peer, topic, "p", 1, "one", "two")
    assert texts(peer, topic, "a") == ["one", "two"]


def test_a_sequence_is_recognised_after_a_restart_however_old(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.acked("SUB", "t", "a")
        for number in range(1, 101):
            assert sequence(peer, "t", "p", number, str(number)) == (number, number)
    broker.restart()
    with Peer(broker.address) as peer:
        assert sequence(peer, "t", "p", 1, "1") == (1, 1)
        assert sequence(peer, "t", "p", 100, "100", "101") == (100, 101)
        assert texts(peer, "t", "a") == [str(number) for number in range(1, 102)]


def test_a_pipeline_that_lost_a_request_is_told_to_send_again_from_there(dealer: Peer, topic: str) -> None:
    dealer.acked("SUB", topic, "a")
    numbers = [1, 2, 4, 5, 3, 4, 5]  # 3 is lost at first
    for number in numbers:
        dealer.send(request("PUT", topic, "p", sequence=number, publications=[str(number)]))
    replies = [json.loads(dealer.receive()) for _ in numbers]
    assert [reply["type"] for reply in replies] == ["ACK", "ACK", "NAK", "NAK", "ACK", "ACK", "ACK"]
    assert [reply["body"].get("expected") for reply in replies[2:4]] == [3, 3]
    assert texts(dealer, topic, "a") == ["1", "2", "3", "4", "5"]


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
    assert 0.4 <= time.monotonic() - begin < 5


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


# --- filters


def test_a_filter_is_read_by_position_and_names_each_topic(peer: Peer, topic: str) -> None:
    wide = f"{topic}/+"
    start = peer.acked("SUB", wide, "a")["last_publication_id"]
    for name, text in (("x", "one"), ("y", "two"), ("x", "three")):
        peer.acked("PUT", f"{topic}/{name}", "p", publication=text)
    found = peer.acked("GET", wide, "a", last_publication_id=start, limit=10)["publications"]
    assert [(one["topic"], one["text"]) for one in found] == [
        (f"{topic}/x", "one"),
        (f"{topic}/y", "two"),
        (f"{topic}/x", "three"),
    ]
    positions = [one["id"] for one in found]
    assert start < positions[0] < positions[1] < positions[2]
    single = peer.acked("GET", wide, "a", last_publication_id=positions[0])
    assert single == {"publication": "two", "publication_id": positions[1], "topic": f"{topic}/y"}
    assert texts(peer, f"{topic}/x", "a", 1) == ["three"]  # one topic through the filter, with its own ids
    assert peer.told("ACK", wide, "a", ids=[positions[2]]) == {"type": "ACK"}
    left = peer.acked("GET", wide, "a", last_publication_id=positions[0], limit=10)["publications"]
    assert [one["id"] for one in left] == [positions[1]]
    assert peer.told("ACK", wide, "a", last_publication_id=positions[2]) == {"type": "ACK"}
    nothing = peer.acked("GET", wide, "a", last_publication_id=positions[2], limit=10)
    assert nothing == {"publications": []}
    assert "No message has the position" in peer.refused("ACK", wide, "a", ids=[positions[2] + 1_000_000])


def test_a_topic_that_several_of_a_clients_filters_match_is_read_through_each(peer: Peer, topic: str) -> None:
    for wide in (f"{topic}/#", f"{topic}/+"):
        peer.acked("SUB", wide, "a")
    peer.acked("PUT", f"{topic}/x", "p", publication="one")
    for wide in (f"{topic}/#", f"{topic}/+"):
        (one,) = peer.acked("GET", wide, "a", last_publication_id=0, limit=10)["publications"]
        assert one["text"] == "one"
        peer.acked("ACK", wide, "a", ids=[one["id"]])
        assert peer.acked("GET", wide, "a", last_publication_id=one["id"], limit=1) == {"publications": []}


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
