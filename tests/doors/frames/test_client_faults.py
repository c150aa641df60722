"""Queues: what goes wrong, and what a program is told then."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stafeta.errors import (
    Cancelled,
    Disconnected,
    InvalidFrame,
    InvalidMessage,
    InvalidName,
    Lagging,
    NoReply,
    StafetaError,
    WrongRole,
)
from stafeta.frames import JSONQueue, PickleQueue, Queue, XMLQueue
from tests import ports
from tests.brokers import BrokerProcess
from tests.doors.frames.peers import HEAD, Place
from tests.doors.frames.queues import Connect, subscribed


def test_no_broker_is_an_error_that_says_where_it_was_looked_for(kind: type[Queue]) -> None:
    with ports.held() as nobody:
        port = nobody.getsockname()[1]
        with pytest.raises(NoReply, match=rf"No broker answers at 127\.0\.0\.1:{port}: Connection refused\."):
            kind("/a", port=port)


def test_a_role_is_one_of_two() -> None:
    with pytest.raises(WrongRole, match="'consumer' or 'producer', not 'both'"):
        JSONQueue("/a", "both")


@pytest.mark.parametrize(
    ("topic", "role"),
    [
        ("", "consumer"),
        ("a b", "consumer"),
        ("a\n", "producer"),
        ("/a/#", "producer"),
        ("x" * 256, "producer"),
    ],
)
def test_a_topic_that_the_broker_would_skip_is_refused(topic: str, role: str) -> None:
    with pytest.raises(InvalidName):
        JSONQueue(topic, role)


def test_a_consumer_does_not_push_and_a_producer_does_not_pull(queue: Connect) -> None:
    with pytest.raises(WrongRole, match="cannot push; make a queue with the role 'producer'"):
        queue("consumer").push(1)
    with pytest.raises(WrongRole, match="cannot pull; make a queue with the role 'consumer'"):
        queue("producer").pull()


def test_a_value_that_is_too_large_is_refused_and_the_queue_goes_on(queue: Connect, place: Place) -> None:
    consumer, producer = queue("consumer"), queue("producer")
    subscribed(consumer, place)
    with pytest.raises(InvalidMessage, match="a frame holds at most 65,535"):
        producer.push("x" * 65_535)
    producer.push("x" * 60_000)
    assert consumer.pull() == (consumer.topic, "x" * 60_000)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (JSONQueue, [{1, 2}, b"x", float("nan"), object()]),
        (XMLQueue, [{1, 2}, b"x", float("inf"), object(), "a\0b", "\ud800", "\uffff"]),
        (PickleQueue, [object(), Path("x"), 1j, frozenset(), print]),
    ],
)
def test_a_value_that_cannot_be_carried_is_refused(
    kind: type[Queue], values: list[object], place: Place, topic: str
) -> None:
    with kind(topic, "producer", *place) as producer:
        for value in values:
            with pytest.raises(InvalidMessage, match=r"cannot carry|is no plain data"):
                producer.push(value)


def test_a_broker_that_goes_is_noticed(kind: type[Queue], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place = broker.door("frames")
        with kind("/a", "consumer", *place) as consumer, kind("/a", "producer", *place) as producer:
            producer.push("x")
            assert consumer.pull() == ("/a", "x")
            broker.kill()
            with pytest.raises(Disconnected, match=r"has closed the connection|is gone: "):
                producer.push("y")
            with pytest.raises(Disconnected, match=r"has closed the connection|is gone: "):
                consumer.pull()
            with pytest.raises(Disconnected):
                producer.list_topics(print)


def test_a_cancelled_queue_gives_and_takes_nothing(queue: Connect) -> None:
    consumer, producer = queue("consumer"), queue("producer")
    for one in (consumer, producer):
        one.cancel()
        one.cancel()
    with pytest.raises(Cancelled):
        consumer.pull()
    with pytest.raises(Cancelled):
        producer.push("x")
    with pytest.raises(Cancelled):
        consumer.list_topics(print)


def test_cancelling_wakes_a_pull_in_another_thread(queue: Connect, place: Place) -> None:
    consumer = queue("consumer")
    subscribed(consumer, place)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(consumer.pull)
        consumer.cancel()
        with pytest.raises(Cancelled):
            waiting.result()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"command":"publish","topic":"$sys/lagging","message":"too slow"}', Lagging),
        (b'{"command":"publish","topic":"/a"}', InvalidFrame),
        (b'{"command":"listTopics","topics":1}', InvalidFrame),
        (b'{"command":"listTopics","topics":[]}', InvalidFrame),
        (b"{", InvalidFrame),
        (b"\xff", InvalidFrame),
    ],
)
def test_what_a_broker_should_not_say_is_an_error(body: bytes, error: type[StafetaError]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        JSONQueue("/a", port=listener.getsockname()[1]) as consumer,
        listener.accept()[0] as connection,
    ):
        connection.sendall(HEAD.pack(0, len(body)) + body)
        with pytest.raises(error):
            consumer.pull()
