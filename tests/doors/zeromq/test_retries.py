"""What is sent again because its reply was lost is stored once: counters, subscriptions, sequences."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, first_kept, put, request, sequence, texts
from tests.doors.zeromq.relays import Relay
from tests.waiting import wait_until

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


def test_counters_and_sequences_of_one_client_are_not_taken_for_each_other(peer: Peer, topic: str) -> None:
    peer.acked("SUB", topic, "a")
    assert put(peer, topic, "p", 5_000_000, "drawn") == 1
    assert sequence(peer, topic, "p", 1, "one", "two") == (2, 3)
    assert put(peer, topic, "p", 1, "drawn low") == 4
    assert sequence(peer, topic, "p", 2, "two", "three") == (3, 5)
    assert put(peer, topic, "p", 5_000_000, "drawn") == 1
    assert texts(peer, topic, "a") == ["drawn", "one", "two", "drawn low", "three"]


def test_counters_and_sequences_are_told_apart_after_a_restart(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        peer.acked("SUB", "t", "a")
        put(peer, "t", "p", 5_000_000, "drawn")
        sequence(peer, "t", "p", 1, "one", "two")
        put(peer, "t", "p", 1, "drawn low")
    for end in (broker.kill, broker.stop, broker.kill):
        end()
        broker.start()
        with Peer(broker.address) as peer:
            assert put(peer, "t", "p", 1, "drawn low") == 4
            assert put(peer, "t", "p", 5_000_000, "drawn") == 1
            assert sequence(peer, "t", "p", 1, "one", "two") == (2, 3)
    with Peer(broker.address) as peer:
        assert sequence(peer, "t", "p", 3, "three") == (5, 5)
        assert texts(peer, "t", "a") == ["drawn", "one", "two", "drawn low", "three"]


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
