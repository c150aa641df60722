"""What strangers do wrong is logged, and hurts nobody else, whichever door they come to."""

import pickle
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest

from tests.brokers import BrokerProcess
from tests.conformance.devices import datagram
from tests.conformance.dialects import Stranger, new_name
from tests.conformance.every import DIALECTS
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

TOPIC = "/conformance/bystanders"
NOISE = random.Random(1).randbytes(200_000)

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + b"\0" * 48
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ"


class Bad(NamedTuple):
    name: str
    door: str
    data: bytes
    line: str
    """What the log says about it."""
    closed: bool = True
    """Whether the broker hangs up; else the stranger does."""


def frame(serializer: int, body: bytes) -> bytes:
    return struct.pack(">BH", serializer, len(body)) + body


def command(kind: int, name: bytes = b"bad", buffer: bytes = b"") -> bytes:
    return struct.pack("<i10s242s", kind, name, buffer)


BOMB = b'<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a command="publish" topic="t" message="&c;"/>'
OTHER = frame(0, b'{"command":"listTopics"}') + frame(1, b'<a command="listTopics"/>')

CHUNKED = (
    b"POST /api/topics/%2Fconformance%2Fx/messages HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)

BAD = [
    Bad("garbage", "zeromq", HTTP, "what came is not ZeroMQ", closed=False),
    Bad("noise", "zeromq", NOISE, "disconnected", closed=False),
    Bad("half-a-frame", "zeromq", GREETING + READY + b"\x01\0\x02\0\0", "disconnected", closed=False),
    Bad("oversized", "zeromq", GREETING + READY + b"\x01\0\x02" + b"\x7f" * 8, "disconnected"),
    Bad("garbage", "devices", HTTP, "no kind of command"),
    Bad("noise", "devices", NOISE, "the connection is closed"),
    Bad("half-a-command", "devices", b"id3badss9!1a", "Client bad disconnected.", closed=False),
    Bad("oversized", "devices", b"id3badss1234!1" + b"a" * 1234, "not one to three digits"),
    Bad("no-id", "devices", b"id0", "length of a client's id"),
    Bad("two-ids", "devices", b"id3badid3bad", "says its id again"),
    Bad("wrong-sf", "devices", b"id3badss1!7a", "SF is b'7'", closed=False),
    Bad("wrong-topic", "devices", b"id3badss3!1a b", "white space", closed=False),
    Bad("struct-without-id", "devices", command(1, buffer=b"a 1\n"), "before the client's id"),
    Bad("struct-half", "devices", command(0) + command(1)[:100], "Client bad disconnected.", closed=False),
    Bad("struct-kind", "devices", command(0) + command(9), "9 is no kind of command"),
    Bad("struct-topic", "devices", command(0) + command(1, buffer=b"\xff\xfe 1"), "not UTF-8", closed=False),
    Bad("garbage", "frames", HTTP, "serializer 71"),
    Bad("noise", "frames", NOISE, "the connection is closed"),
    Bad("half-a-frame", "frames", frame(0, b'{"command":')[:9], "ended within a frame", closed=False),
    Bad("empty", "frames", b"\0\0\0", "length 0"),
    Bad("another-serializer", "frames", OTHER, "this connection's is 0 (JSON)"),
    Bad("no-json", "frames", frame(0, b'{"command": "publish"'), "not JSON"),
    Bad("nested", "frames", frame(0, b"[" * 60_000), "the connection is closed"),
    Bad("no-verb", "frames", frame(0, b'{"topic": "t"}'), "neither"),
    Bad("wrong-verb", "frames", frame(0, b'{"type": "shout", "topic": "t"}'), "'shout' is no verb"),
    Bad(
        "wrong-topic",
        "frames",
        frame(0, b'{"type": "subscribe", "topic": "a b"}'),
        "white space",
        closed=False,
    ),
    Bad("no-xml", "frames", frame(1, b"<a"), "not XML"),
    Bad("bomb", "frames", frame(1, BOMB), "document type"),
    Bad("no-pickle", "frames", frame(2, b"\x80\x04]."), "no dictionary"),
    Bad("attack", "frames", frame(2, b"cos\nsystem\n(S'true'\ntR."), "os.system"),
    Bad("garbage", "http", b"\x16\x03\x01 no TLS here\r\n\r\n", "not a request of HTTP/1.1"),
    Bad("endless-head", "http", b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000, "head of a request"),
    Bad("endless-chunk", "http", CHUNKED + b"5;" + b"x" * 400_000, "stands beside a body"),
    Bad("no-url", "http", b"GET http://[ HTTP/1.1\r\n\r\n", "URL of a request"),
    Bad("object", "frames", frame(2, pickle.dumps({"command": ValueError})), "builtins.ValueError"),
]


@pytest.fixture(scope="module")
def bystanders(one_broker: BrokerProcess) -> Iterator[list[Stranger]]:
    """One of each dialect, all subscribed to the same topic."""
    with ExitStack() as closing:
        everyone = [closing.enter_context(one.connect(one_broker, new_name())) for one in DIALECTS]
        for one in everyone:
            one.subscribe(TOPIC)
        yield everyone


@pytest.fixture(autouse=True)
def nobody_else_notices(bystanders: list[Stranger], topic: str) -> Iterator[None]:
    """After each test everyone else, on the connection that it had, hears everyone else."""
    yield
    for number, publisher in enumerate(bystanders):
        publisher.publish(TOPIC, f"{topic} {number}")
        for receiver in bystanders:
            assert receiver.texts(1) == [f"{topic} {number}"]


@pytest.fixture
def new_lines(one_broker: BrokerProcess) -> Callable[[], list[str]]:
    """What the broker has logged since the test began."""
    begin = len(one_broker.stderr)

    def lines() -> list[str]:
        return one_broker.stderr[begin:].splitlines()

    return lines


@pytest.mark.parametrize("bad", BAD, ids=[f"{bad.door}-{bad.name}" for bad in BAD])
def test_bad_bytes_are_logged_and_hurt_nobody_else(
    one_broker: BrokerProcess, new_lines: Callable[[], list[str]], bad: Bad
) -> None:
    with socket.create_connection(one_broker.door(bad.door), PATIENCE) as connection:
        with suppress(OSError):  # it may be hung up on before all is said
            connection.sendall(bad.data)
            if not bad.closed:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while connection.recv(65536):
                pass
    wait_until(lambda: any(bad.line in line and f" {bad.door}: " in line for line in new_lines()))
    assert len(new_lines()) < 20


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\0" * 60, id="no-topic"),
        pytest.param(datagram("t", 0, b"")[:50], id="no-type"),
        pytest.param(datagram("t", 4, b"12345"), id="unknown-type"),
        pytest.param(datagram("t", 0, b"\0\0\0\0"), id="half-a-number"),
        pytest.param(datagram("t", 2, b"\x07\0\0\0\x01\0"), id="wrong-sign"),
        pytest.param(datagram("t", 3, b"x" * 1501), id="oversized"),
        pytest.param(datagram("t", 3, b"x" * 60_000), id="far-oversized"),
        pytest.param(b"\xff" * 100, id="no-utf-8"),
        pytest.param(datagram("two words", 3, b"x"), id="wrong-topic"),
        pytest.param(NOISE[:1400], id="noise"),
    ],
)
def test_a_bad_datagram_is_dropped_and_logged(
    one_broker: BrokerProcess, new_lines: Callable[[], list[str]], data: bytes
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, one_broker.door("devices"))
    wait_until(lambda: any("datagrams are dropped: " in line for line in new_lines()))
