"""What strangers may use up over HTTP: sizes that lie, bodies without end, and those who say nothing."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stafeta.broker import Broker
from stafeta.doors.http.codec import key_name
from stafeta.doors.http.connection import MAX_HEADERS, MAX_PIPELINED
from stafeta.security import ANYONE
from stafeta.testing.memory import MemoryStore
from tests.brokers import BrokerProcess
from tests.doors.http.peers import Answer, Peer, Place, messages_of
from tests.doors.opened import http
from tests.waiting import PATIENCE, comes_true, wait_until

MAX_BODY = 100_000
POST = b"POST /api/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with little patience."""
    settings = {
        "http.max_body": MAX_BODY,
        "limits.identify_timeout": "200ms",
        "limits.peer_timeout": "300ms",
        "limits.max_payload": 50_000,
        "limits.max_connections": 40,
        "durability": "os",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    data = tmp_path_factory.mktemp("strict") / "data"
    with BrokerProcess(data, *options, doors=("http",)) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def door(strict: BrokerProcess) -> Iterator[Place]:
    yield strict.door("http")
    with Peer(strict.door("http")) as peer:
        assert peer.get("/healthz") == {"status": "alive"}  # nobody else has suffered


def said(place: Place, data: bytes, *more: bytes) -> bytes:
    """What is answered to these bytes, up to the end of the connection."""
    with socket.create_connection(place, PATIENCE) as raw:
        with suppress(OSError):
            for part in (data, *more):
                raw.sendall(part)
        answer = b""
        with suppress(OSError):
            while some := raw.recv(65536):
                answer += some
        return answer


def test_a_body_that_is_too_large_is_refused_before_it_comes(door: Place) -> None:
    answer = said(door, POST + b"Content-Length: 100001\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"http.max_body" in answer


@pytest.mark.parametrize("request_", ["POST /api/login", "PUT /api/topics/t", "GET /healthz"])
def test_a_body_that_is_no_message_is_small(place: Place, request_: str) -> None:
    """Also strangers may send one; it is read on the loop, and all bodies together have a limit."""
    head = f"{request_} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = said(place, head.encode() + b"Content-Length: 2000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_without_end_is_refused(door: Place) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert said(door, CHUNKED, *[chunk] * 8)[:12] in (b"HTTP/1.1 413", b"")  # or it is reset while it sends


@pytest.mark.parametrize("length", [b"-1", b"99999999999999999999999", b"1, 2", b"0x10", b"ten"])
def test_a_length_that_is_none_is_refused(door: Place, length: bytes) -> None:
    assert said(door, POST + b"Content-Length: " + length + b"\r\n\r\nx").startswith(
        (b"HTTP/1.1 400", b"HTTP/1.1 413")
    )


def test_a_length_and_chunks_do_not_go_together(door: Place) -> None:
    data = POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert said(door, data).startswith(b"HTTP/1.1 400")


def test_a_body_that_does_not_come_is_not_waited_for(door: Place) -> None:
    answer = said(door, POST + b"Content-Length: 10\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_message_is_no_longer_than_at_other_doors(door: Place) -> None:
    with Peer(door) as peer:
        assert peer.ask("POST", messages_of("t"), b"x" * 50_001).status == 400


def test_whoever_says_nothing_is_closed(strict: BrokerProcess, door: Place) -> None:
    assert said(door, b"") == b""
    assert said(door, b"GET /healthz HT") == b""
    strict.wait_for_line("limits.identify_timeout")


def test_whoever_does_not_finish_his_next_request_is_closed(strict: BrokerProcess, door: Place) -> None:
    answer = said(door, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal")
    assert answer.count(b"HTTP/1.1 200") == 1
    strict.wait_for_line("do not finish the head of a request")


def test_there_are_so_many_connections(strict: BrokerProcess, door: Place) -> None:
    with Peer(door) as kept:
        assert kept.get("/healthz")
        held = [socket.create_connection(door, PATIENCE) for _ in range(60)]
        try:
            strict.wait_for_line("limits.max_connections")
            assert kept.get("/healthz")
        finally:
            for one in held:
                one.close()

        def one_more() -> bool:
            with suppress(OSError), Peer(door) as peer:
                return peer.ask("GET", "/healthz").status == 200
            return False

        wait_until(one_more)


def test_an_upgrade_to_something_else_is_a_request_like_others(door: Place) -> None:
    with Peer(door) as peer:
        upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "x"}
        with suppress(OSError):
            assert peer.ask("GET", "/healthz", None, upgrade).status in (200, 400, 426)


def test_whoever_pings_and_does_not_read_is_closed(place: Place) -> None:
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE)
        raw.connect(place)
        raw.sendall(
            b"GET /api/socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        with pytest.raises(ConnectionError):
            raw.sendall(ping * 500_000)


def test_bodies_count_as_held_until_what_they_say_is_done() -> None:
    async def life() -> None:
        broker = await Broker.open(MemoryStore())
        door, place = await http(broker)
        door.max_held = 1500

        def publish() -> Answer:
            with Peer(place) as peer:
                return peer.ask("POST", messages_of("t"), b"x" * 1000, {"Idempotency-Key": "k"})

        async with asyncio.timeout(PATIENCE):
            async with door.keys.taken((ANYONE.user, key_name("k", "t"))):
                first = asyncio.create_task(asyncio.to_thread(publish))
                await comes_true(lambda: door.held == 1000 and len(door.state.tasks) == 1)
                assert (await asyncio.to_thread(publish)).status == 503
            assert (await first).status == 201
            await comes_true(lambda: door.held == 0 and not door.state.connections)
        await door.close()
        await broker.close()

    asyncio.run(life())


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def test_requests_that_wait_behind_another_are_so_many(place: Place) -> None:
    stream = b"GET /api/events?filter=t HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert said(place, stream + (GET + b"\r\n") * 10_000).count(b"HTTP/1.1 ") <= 1
    last = GET + b"Connection: close\r\n\r\n"
    answers = said(place, (GET + b"\r\n") * MAX_PIPELINED + last)
    assert answers.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1


def test_a_request_has_so_many_headers(place: Place) -> None:
    most = b"X: y\r\n" * (MAX_HEADERS - 2)
    assert said(place, GET + most + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    answer = said(place, GET + most + b"X: y\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"more than 100 headers" in answer
