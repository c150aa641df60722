"""Subscribing, getting and acknowledging, with the plain client and its asyncio twin alike."""

import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from stafeta import Client
from stafeta.errors import Refused
from tests.brokers import BrokerProcess
from tests.doors.zeromq.arrivals import texts


def test_a_message_comes_again_until_it_is_acknowledged(client: Client, topic: str) -> None:
    client.subscribe(topic)
    assert client.get(topic) is None
    client.put_many(topic, ["a", "b"])
    first = client.get(topic)
    assert first is not None
    assert client.get(topic) == first
    client.ack(first)
    client.ack(first)
    second = client.get(topic)
    assert second is not None
    assert second.text == "b"
    client.ack(second)
    assert client.get(topic) is None


def test_messages_are_acknowledged_in_any_order(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str
) -> None:
    client = connect(lasting.address, "reader")
    client.subscribe(topic)
    client.put_many(topic, map(str, range(1, 11)))
    messages = client.get_many(topic)
    client.ack([messages[8], messages[1], messages[4]])
    client.ack(messages[0])
    left = [3, 4, 6, 7, 8, 10]
    assert [message.id for message in client.get_many(topic)] == left
    client.close()
    client = connect(lasting.address, "reader")
    assert [message.id for message in client.get_many(topic)] == left
    client.ack(topic, up_to=5)
    assert [message.id for message in client.get_many(topic, limit=2)] == [6, 7]
    client.ack([messages[5], messages[6], messages[7]])
    assert [message.id for message in client.get_many(topic)] == [10]


def test_only_what_exists_can_be_acknowledged(client: Client, topic: str) -> None:
    client.subscribe(topic)
    client.put(topic, "x")
    with pytest.raises(Refused):
        client.ack(topic, up_to=2)
    with pytest.raises(TypeError, match="up_to"):
        client.ack(topic)
    message = client.get(topic)
    assert message is not None
    with pytest.raises(TypeError, match="topic"):
        client.ack(message, up_to=1)
    assert message.id == 1


def test_get_waits_for_a_message(connect: Callable[..., Client], lasting: BrokerProcess, topic: str) -> None:
    # The wait is longer than the timeout: several requests, each of which waits a part of it.
    client = connect(lasting.address, timeout=0.2, retries=1000)
    client.subscribe(topic)
    begin = time.monotonic()
    assert client.get(topic, wait=0.7) is None
    assert 0.69 <= time.monotonic() - begin < 60, "a clock may tick a little early"

    with Client(lasting.address) as other:
        putting = threading.Timer(0.5, other.put, (topic, "late"))
        putting.start()
        message = client.get(topic, wait=math.inf)
        putting.join()
    assert message is not None
    assert message.text == "late"


def test_messages_acknowledges_each_when_the_next_is_asked_for(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    client = connect(lasting.address, "reader")
    client.subscribe(topic)
    client.put_many(topic, map(str, range(1, 6)))
    seen = []
    for message in client.messages(topic):
        seen.append(message.id)
        if message.id == 3:
            break
    assert seen == [1, 2, 3]
    client.close()
    with closing(sqlite3.connect(tmp_path / "reader" / "client.db")) as memory:
        (identity,) = memory.execute("SELECT identity FROM client").fetchone()
    socket: zmq.Socket[bytes]
    with zmq.Context.instance().socket(zmq.REQ) as socket:
        socket.connect(lasting.address)
        socket.send_string(f"GET {identity} {topic}")
        assert socket.recv_string() == "3::3:/4::4:/5::5"
    assert [message.id for message in connect(lasting.address, "reader").get_many(topic)] == [3, 4, 5]


def test_a_filter_gets_the_messages_of_all_its_topics(client: Client, topic: str) -> None:
    both = f"{topic}/#"
    client.subscribe(both)
    for name in ("a", "b/c"):
        client.subscribe(f"{topic}/{name}")
    ids = {name: [client.put(f"{topic}/{name}", f"{name}{n}") for n in (1, 2)] for name in ("a", "b/c")}
    assert ids == {"a": [1, 2], "b/c": [1, 2]}
    messages = client.get_many(both)
    assert [(message.topic, message.text) for message in messages] == [
        (f"{topic}/{name}", f"{name}{n}") for name in ("a", "b/c") for n in (1, 2)
    ]
    assert sorted({message.id for message in messages}) == [message.id for message in messages]
    client.ack(messages[2])
    assert client.get_many(both) == [messages[0], messages[1], messages[3]]
    client.ack(messages)
    assert client.get(both) is None


def test_without_a_subscription_there_is_nothing_to_get(client: Client, topic: str) -> None:
    client.subscribe(topic)
    client.put(topic, "x")
    client.unsubscribe(topic)
    with pytest.raises(Refused):
        client.get(topic)
    with pytest.raises(Refused):
        client.unsubscribe(topic)


def test_a_subscription_made_again_begins_anew(client: Client, lasting: BrokerProcess, topic: str) -> None:
    client.subscribe(topic)
    with Client(lasting.address) as other:
        other.subscribe(topic)
        client.put_many(topic, ["a", "b"])
        client.unsubscribe(topic)
        assert client.subscribe(topic) == 2
        client.put(topic, "c")
        assert texts(client, topic) == ["c"]
