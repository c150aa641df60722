"""The door's own clients: on a bad day first, then at a broker."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.clients.devices import Publisher, Subscriber, kind_of, payload_of
from stafeta.doors.devices.codec import ReceivedMessage, text_frames
from stafeta.errors import InvalidClient, InvalidDelivery, InvalidMessage, InvalidName, NoReply
from stafeta.message import Kind, RowBatch
from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Place
from tests.waiting import wait_until

FRAME = text_frames(RowBatch("a", 1, [(1, 0, "", "10.1.2.3:4", int(Kind.INT), None, b"7")]), lambda: None)[0]
SEVEN = ReceivedMessage("10.1.2.3", 4, "a", "INT", "7")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def ends(listener: socket.socket) -> Iterator[tuple[Subscriber, socket.socket]]:
    """A subscriber, and a server that says what a test wants."""
    with Subscriber("C1", *listener.getsockname()) as subscriber:
        server, _ = listener.accept()
        with server:
            assert server.recv(100) == b"id2C1"
            yield subscriber, server


# --- no broker, or a bad one


def test_where_nobody_listens_the_sentence_says_so(listener: socket.socket) -> None:
    place = listener.getsockname()
    listener.close()
    with pytest.raises(NoReply, match=rf"^127\.0\.0\.1:{place[1]} cannot be reached: Connection refused\.$"):
        Subscriber("C1", *place)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "a..b"])
def test_a_host_that_is_none_is_told(host: str) -> None:
    with pytest.raises(NoReply, match="cannot be reached"):
        Publisher(host, 1)
    with pytest.raises(NoReply, match="cannot be reached"):
        Subscriber("C1", host, 1)


def test_an_id_that_cannot_be_is_told_before_anything_is_sent() -> None:
    with pytest.raises(InvalidClient):
        Subscriber("eleven chars", "no.such.host.invalid", 1)


def test_a_message_that_comes_in_pieces_is_waited_for(ends: tuple[Subscriber, socket.socket]) -> None:
    subscriber, server = ends
    server.sendall(FRAME[:20])
    assert subscriber.receive(0.01) == []
    assert subscriber.receive(0.01) == []
    server.sendall(FRAME[20:] + FRAME)
    assert wait_until(lambda: subscriber.receive(1)) == [SEVEN, SEVEN]


def test_what_came_before_the_end_is_not_lost(ends: tuple[Subscriber, socket.socket]) -> None:
    subscriber, server = ends
    server.sendall(FRAME * 1000 + FRAME[:10])
    server.close()
    assert list(subscriber) == [SEVEN] * 1000
    assert subscriber.receive() is None


def test_a_reset_is_the_end_too(ends: tuple[Subscriber, socket.socket]) -> None:
    subscriber, server = ends
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    assert subscriber.receive() is None
    with pytest.raises(NoReply, match="closed the connection"):
        subscriber.subscribe("a")
    subscriber.finish()


def test_a_server_that_makes_no_sense_is_told(ends: tuple[Subscriber, socket.socket]) -> None:
    subscriber, server = ends
    server.sendall(FRAME + b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(InvalidDelivery, match="The broker sends"):
        list(subscriber)


def test_a_topic_that_cannot_be_sent_leaves_the_connection_as_it_was(
    ends: tuple[Subscriber, socket.socket],
) -> None:
    subscriber, server = ends
    with pytest.raises(InvalidName):
        subscriber.subscribe("x" * 1000)
    subscriber.subscribe("a", sf=True)
    subscriber.unsubscribe("a")
    subscriber.finish()
    assert server.makefile("rb").read() == b"ss1!1aus1!a"


# --- at a broker


def test_readings_arrive_as_they_were_published(place: Place, client: str, topic: str) -> None:
    readings = [
        (Kind.INT, "-7"),
        (Kind.SHORT_REAL, "7.50"),
        (Kind.FLOAT, "1234.4321"),
        (Kind.STRING, "șapte"),
    ]
    with Subscriber(client, *place) as subscriber, Publisher(*place) as publisher:
        subscriber.subscribe(f"{topic}/+")

        def arrived() -> list[ReceivedMessage] | None:
            publisher.publish(f"{topic}/ready", Kind.STRING, b"")
            return subscriber.receive(0.05)

        wait_until(arrived)
        for kind, text in readings:
            publisher.publish(f"{topic}/x", kind, payload_of(kind, text))
        found: list[tuple[str, str]] = []
        for message in subscriber:
            if message.topic == f"{topic}/x":
                found.append((message.kind, message.value))
            if len(found) == len(readings):
                break
    assert found == [(kind.name, text) for kind, text in readings]


def test_a_second_connection_of_the_same_client_is_closed_without_a_word(place: Place, client: str) -> None:
    with Subscriber(client, *place) as first, Subscriber(client, *place) as second:
        assert second.receive() is None
        assert first.receive(0.01) == []


def test_what_was_said_last_is_carried_out_before_the_broker_closes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("devices",)) as broker:
        place = broker.door("devices")
        with Subscriber("C1", *place) as subscriber:
            subscriber.subscribe("a", sf=True)
            subscriber.finish()
            assert subscriber.receive() is None
        with Publisher(*place) as publisher:
            publisher.publish("a", Kind.INT, b"1")
        with Subscriber("C1", *place) as subscriber:
            assert [message.value for message in wait_until(lambda: subscriber.receive(1) or [])] == ["1"]
            broker.stop()
            assert subscriber.receive() is None


# --- what people write


@pytest.mark.parametrize(
    ("kind", "text", "payload"),
    [
        (Kind.INT, "-5", b"-5"),
        (Kind.INT, "1e3", b"1000"),
        (Kind.SHORT_REAL, "5", b"5.00"),
        (Kind.SHORT_REAL, "5.5", b"5.50"),
        (Kind.SHORT_REAL, "5.25", b"5.25"),
        (Kind.FLOAT, "1234.4321", b"1234.4321"),
        (Kind.FLOAT, "1.500", b"1.500"),
        (Kind.FLOAT, "1e-07", b"0.0000001"),
        (Kind.FLOAT, "-1.5E+2", b"-150"),
        (Kind.STRING, "1e3", b"1e3"),
        (Kind.STRING, "", b""),
    ],
)
def test_a_value_is_taken_exactly_as_it_is_written(kind: Kind, text: str, payload: bytes) -> None:
    assert payload_of(kind, text) == payload


@pytest.mark.parametrize(
    "text", ["", "x", "5.", ".5", "1e", "1e9999", "nan", "+5", "0x10", "٣", "1 2", "1_0"]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a number"):
        payload_of(Kind.FLOAT, text)


def test_a_string_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="not UTF-8"):
        payload_of(Kind.STRING, "\udcff")


def test_a_kind_is_named_in_capitals_or_not() -> None:
    assert [kind_of(word) for word in ("int", "SHORT_REAL", "Float", "string")] == list(Kind)[:4]
    for word in ("json", "bytes", "integer", ""):
        with pytest.raises(InvalidMessage, match="devices publish int, short_real, float, string"):
            kind_of(word)
