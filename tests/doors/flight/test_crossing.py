"""Messages that cross from one door to another."""

import json
import socket
import struct

import pyarrow as pa

from tests.brokers import BrokerProcess
from tests.conformance.devices import datagram
from tests.doors.devices.subscribers import Subscriber
from tests.doors.flight.peers import Peer, column, numbered, rows_of
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.doors.zeromq.peers import sequence, texts
from tests.waiting import wait_until


def test_what_zeromq_clients_put_is_read_here(flying: BrokerProcess, peer: Peer, topic: str) -> None:
    with ZeroMQPeer(flying.address) as other:
        other.acked("SUB", topic, "somebody")
        assert other.ask(f"PUT {topic} plain text") == "ACK"
        other.acked("PUT", topic, "", publication="-12.50", kind="short_real")
        other.acked("PUT", topic, "", publication={"a": [1, None]})
        assert sequence(other, topic, "counting", 1, "one", "two") == (4, 5)
    found = peer.get({"topic": topic, "columns": ["offset", "kind", "payload", "producer", "counter"]})
    assert column(found, "kind") == ["string", "short_real", "json", "string", "string"]
    assert column(found, "payload")[:2] == [b"plain text", b"-12.50"]
    assert column(found, "payload")[3:] == [b"one", b"two"]
    assert column(found, "producer") == ["", "", "", "counting", "counting"]
    assert column(found, "counter") == [None, None, None, 1, 2]
    assert column(found, "offset") == [1, 2, 3, 4, 5]


def test_what_is_put_here_is_got_by_zeromq_clients(flying: BrokerProcess, peer: Peer, topic: str) -> None:
    with ZeroMQPeer(flying.address) as other:
        other.acked("SUB", topic, "somebody")
        other.acked("SUB", topic, "another")
        peer.put_texts(topic, numbered(100))
        peer.put(topic, rows_of([b"1.5", b"\xff"], pa.binary(), kind=pa.array(["float", "bytes"])))
        other.ask(f"PUT {topic} in between")
        peer.put_texts(topic, ["last"])
        expected = [*numbered(100), "1.5", r"\xff", "in between", "last"]
        assert other.got("somebody", topic) == list(enumerate(expected, 1))
        assert texts(other, topic, "another")[:101] == [*numbered(100), "1.5"]


def test_a_zeromq_client_that_waits_is_woken_by_what_is_put_here(
    flying: BrokerProcess, peer: Peer, topic: str
) -> None:
    with ZeroMQPeer(flying.address) as other:
        other.acked("SUB", topic, "somebody")
        body = {"last_publication_id": 0, "limit": 10, "wait": 20}
        other.send(json.dumps({"type": "GET", "topic": topic, "client_id": "somebody", "body": body}))
        peer.put_texts(topic, ["wake up"])
        assert [one["text"] for one in json.loads(other.receive())["body"]["publications"]] == ["wake up"]


def test_a_follower_here_is_sent_what_zeromq_clients_put(
    flying: BrokerProcess, peer: Peer, topic: str
) -> None:
    with ZeroMQPeer(flying.address) as other, peer.reading({"topic": topic, "follow": True}) as stream:
        other.acked("SUB", topic, "somebody")
        for number in range(20):
            assert other.ask(f"PUT {topic} {number}") == "ACK"
            assert stream.texts(1) == [f"{number}"]


def test_what_devices_send_is_read_here(flying: BrokerProcess, peer: Peer, topic: str, name: str) -> None:
    peer.subscribe(name, topic)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        device.connect(flying.door("devices"))
        host, port = device.getsockname()
        device.send(datagram(topic, 0, struct.pack(">BI", 1, 12)))
        device.send(datagram(topic, 1, struct.pack(">H", 2150)))
        device.send(datagram(topic, 3, "ștafetă".encode()))
        with peer.reading({"client": name, "filter": topic, "follow": True}) as stream:
            found = stream.rows(3)
    assert column(found, "kind") == ["int", "short_real", "string"]
    assert column(found, "payload") == [b"-12", b"21.50", "ștafetă".encode()]
    assert column(found, "source") == [f"{host}:{port}"] * 3


def test_what_is_put_here_is_told_to_devices(flying: BrokerProcess, peer: Peer, topic: str) -> None:
    with Subscriber(flying.door("devices"), "flown") as device:
        device.subscribe(topic, 1)
        wait_until(lambda: peer.topics(topic))
        kinds = pa.array(["int", "string", "json"])
        peer.put(topic, rows_of([b"-12", b"text", b"[1]"], pa.binary(), kind=kinds))
        found = device.receive(3)
    assert [message.type for message in found] == [0, 3, 3]
    assert [message.content for message in found] == [struct.pack(">BI", 1, 12), b"text", b"[1]"]
    assert {message.topic for message in found} == {topic}


def test_producers_of_one_name_at_two_doors_are_two(flying: BrokerProcess, peer: Peer, topic: str) -> None:
    with ZeroMQPeer(flying.address) as other:
        other.acked("SUB", topic, "somebody")
        assert sequence(other, topic, "twin", 1, "one", "two") == (1, 2)
        answer = peer.put_texts(
            {"topic": topic, "producer": "twin"}, ["eins", "zwei", "drei"], {"sequence": 1}
        )
        assert answer == {"topic": topic, "offset": 3, "rows": 3}
        assert sequence(other, topic, "twin", 3, "three") == (6, 6)
        assert peer.act("sequence", producer="twin", topic=topic) == {"next": 4}
    assert peer.texts(topic) == ["one", "two", "eins", "zwei", "drei", "three"]
