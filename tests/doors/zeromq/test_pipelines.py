"""Requests sent ahead, in both dialects: replies come in order, and nobody waits for another."""

import json
import random

import pytest
import zmq

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, ack_body, read_get, request


def test_the_dialects_see_each_others_messages_and_subscriptions(dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}")
    assert dealer.acked("SUB", topic, "b") == {"last_publication_id": 0}
    dealer.ask(f"PUT {topic} in text: ș")
    dealer.acked("PUT", topic, "b", counter=1, publication="in JSON: ș")
    assert dealer.got("a", topic) == [(1, "in text: ș"), (2, "in JSON: ș")]
    assert dealer.got("b", topic) == dealer.got("a", topic)
    single = dealer.acked("GET", topic, "a", last_publication_id=0)
    assert single == {"publication": "in text: ș", "publication_id": 1}
    dealer.acked("GET", topic, "a", last_publication_id=1)
    assert dealer.got("a", topic) == [(2, "in JSON: ș")]
    dealer.ask(f"ACK b {topic} 1")
    assert dealer.acked("SUB", topic, "b") == {"last_publication_id": 1}
    assert dealer.told("UNSUB", topic, "a") == {"type": "ACK"}
    assert dealer.ask(f"GET a {topic}") == "NOT_SUBSCRIBED"


def test_replies_come_in_the_order_of_the_requests_whatever_these_are(dealer: Peer, topic: str) -> None:
    chance = random.Random(2)
    stored: list[str] = []
    open_ids: list[int] = []
    known = 0  # what a GET has made known
    expected: list[str | list[tuple[int, str]]] = []

    def ask(wanted: str | list[tuple[int, str]], body: str) -> None:
        dealer.send(body)
        expected.append(wanted)

    ask("ACK", f"SUB a {topic}")
    for number in range(3000):
        match chance.randrange(8):
            case 0 | 1 | 2:
                stored.append(f"message {number}")
                open_ids.append(len(stored))
                ask("ACK", f"PUT {topic} message {number}")
            case 3:
                stored.append(f"counted {number}")
                open_ids.append(len(stored))
                body = request("PUT", topic, "p", counter=number, publication=f"counted {number}")
                ask(f'{{"type":"ACK","body":{{"current_publication_id":{len(stored)}}}}}', body)
            case 4:
                known = len(stored)
                ask([(id_, stored[id_ - 1]) for id_ in open_ids] or "NO_MESSAGES", f"GET a {topic}")
            case 5 if open_ids and open_ids[0] <= known:
                ids = [id_ for id_ in open_ids if id_ <= known]
                done = chance.sample(ids, min(len(ids), chance.randrange(1, 8)))
                open_ids = [id_ for id_ in open_ids if id_ not in done]
                ask("ACK", f"ACK a {topic} {','.join(map(str, done))}")
            case 6:
                ask("ACK", f"SUB a {topic}")
            case _:
                ask(
                    f"BAD_REQUEST 'wrong{number}' is not a request; "
                    "the requests are LOGIN, SUB, UNSUB, PUT, GET and ACK.",
                    f"wrong{number}",
                )
    for wanted in expected:
        reply = dealer.receive()
        if isinstance(wanted, str):
            assert reply == wanted
        else:  # as many as fit the reply, the first ones
            messages = read_get(reply)
            assert messages
            assert messages == wanted[: len(messages)]


def test_a_pipeline_does_not_hold_up_others(small: BrokerProcess, dealer: Peer, topic: str) -> None:
    dealer.ask(f"SUB a {topic}")
    dealer.send(request("GET", topic, "a", last_publication_id=0, wait=30))
    dealer.send("LOGIN")
    with Peer(small.address, zmq.REQ) as other:
        assert other.ask(f"PUT {topic} finally") == "ACK"
    assert ack_body(json.loads(dealer.receive())) == {"publication": "finally", "publication_id": 1}
    assert dealer.receive().startswith("LOGIN:")


@pytest.mark.slow
def test_replies_stay_in_order_when_they_are_read_late(lasting: BrokerProcess, topic: str) -> None:
    rounds, count, topics = 40, 50, 300
    with Peer(lasting.address) as peer:
        for number in range(topics):
            peer.send(f"SUB a {topic}/{number}")
        assert [peer.receive() for _ in range(topics)] == ["ACK"] * topics
    # More than the door holds for it: some replies wait for it while a later request waits for a message.
    with Peer(lasting.address, deaf=True) as late:
        for number in range(rounds):
            for _ in range(count):
                late.send(request("TOPICS", filter=f"{topic}/+"))
            late.send(request("GET", f"{topic}/{number}", "a", last_publication_id=0, limit=1, wait=0.05))
            late.send("wrong")
        for _ in range(rounds):
            for _ in range(count):
                assert late.receive().startswith('{"type":"ACK","body":{"topics":[')
            assert late.receive() == '{"type":"ACK","body":{"publications":[]}}'
            assert late.receive().startswith("BAD_REQUEST")
