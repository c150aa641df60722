"""Whatever strangers do to the port: a line in the log, no harm to others, and memory back to where it was."""

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import zmq

from stafeta.names import MAX_BYTES
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import LazyPirate, Peer, ack_body, request, works
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

MIB = 1 << 20
MARGIN = 192 * MIB  # what malloc keeps of large messages varies, most where processes compete
LITTLE = 16 * MIB
BACKLOG = 1 * MIB

NOT_ZEROMQ = "a connection was closed: what came is not ZeroMQ"
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + b"\0" * 48
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ"


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("strangers") / "data"
    with BrokerProcess(data, "--set", f"zeromq.max_backlog={BACKLOG}") as process:
        pipeline(process, "warm/up", 100)  # fills what is kept in memory on purpose
        yield process


@pytest.fixture(autouse=True)
def no_harm(visited: BrokerProcess, topic: str) -> Iterator[None]:
    """After each test others are served and memory is back."""
    assert works(visited, f"{topic}/works")
    before = memory(visited)
    yield
    assert works(visited, f"{topic}/works")
    wait_until(lambda: memory(visited) < before + MARGIN)
    assert "Traceback" not in visited.stderr


@pytest.fixture
def new_lines(visited: BrokerProcess) -> Callable[[], list[str]]:
    """What the broker has logged since the test began."""
    begin = len(visited.stderr)

    def lines() -> list[str]:
        return visited.stderr[begin:].splitlines()

    return lines


def memory(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def pipeline(broker: BrokerProcess, topic: str, count: int) -> int:
    """Puts messages of 1 MiB without waiting for replies, and gets them; returns the most memory that it took."""
    peak = 0
    with Peer(broker.address) as peer:
        peer.ask(f"SUB a {topic}")
        body = f"PUT {topic} {'x' * MIB}"
        for _ in range(count):
            peer.send(body)
        for _ in range(count):
            assert peer.receive() == "ACK"
            peak = max(peak, memory(broker))
        for id_ in range(1, count + 1):
            peer.send(f"GET a {topic}")
            peer.send(f"ACK a {topic} {id_}")
        for id_ in range(1, count + 1):
            assert peer.receive().startswith(f"{id_}::xxx")
            assert peer.receive() == "ACK"
            peak = max(peak, memory(broker))
        assert peer.ask(f"UNSUB a {topic}") == "ACK"
    return peak


def dial(broker: BrokerProcess) -> socket.socket:
    host, _, port = broker.address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def shake_hands(connection: socket.socket) -> None:
    """ZMTP's beginning, as a REQ has it; after it come frames."""
    connection.sendall(GREETING + READY)
    assert read(connection, len(GREETING)).startswith(GREETING[:10])
    flags, length = read(connection, 2)
    assert flags == READY[0]
    assert read(connection, length).startswith(READY[2:8])


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data)) or pytest.fail("the broker has hung up")
    return data


def say_and_leave(connection: socket.socket, data: bytes) -> None:
    """Says this and no more, and waits until the broker has hung up. It may do so before all is said."""
    with suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def frame(body: bytes, *, more: bool = False) -> bytes:
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return bytes([2 | more]) + struct.pack(">Q", len(body)) + body


# --- no ZeroMQ at all


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(range(256)), id="tls"),
        pytest.param(b"\xff" * 10_000, id="ones"),
        pytest.param(b"LOGIN\n", id="text"),
        pytest.param(GREETING.replace(b"NULL", b"JUNK"), id="unknown-mechanism"),
        pytest.param(GREETING[:20], id="half-a-greeting"),
        pytest.param(GREETING, id="a-greeting-and-no-more"),
        pytest.param(b"x", id="a-byte"),
    ],
)
def test_what_is_not_zeromq_is_hung_up_on_with_a_line(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], garbage: bytes
) -> None:
    with dial(visited) as connection:
        say_and_leave(connection, garbage)
    wait_until(lambda: any(NOT_ZEROMQ in line for line in new_lines()))
    wait_until(lambda: any(" disconnected" in line for line in new_lines()))


@pytest.mark.parametrize("seed", range(8))
def test_noise_costs_a_few_lines_however_long_it_is(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], seed: int
) -> None:
    noise = random.Random(seed).randbytes(500_000)
    for start in (b"", GREETING, GREETING + READY):
        with dial(visited) as connection:
            say_and_leave(connection, start + noise)
    wait_until(lambda: sum(" disconnected" in line for line in new_lines()) >= 3)
    assert len(new_lines()) <= 5 * 3


# --- ZeroMQ, up to a point


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(frame(b"", more=True), id="a-delimiter-only"),
        pytest.param(frame(b"", more=True) + frame(b"x" * 5000)[:2000], id="half-a-frame"),
        pytest.param(frame(b"", more=True) + b"\x02\0\0\0", id="half-a-length"),
        pytest.param(
            frame(b"", more=True) + b"\x02" + struct.pack(">Q", 15 * MIB), id="a-length-and-no-more"
        ),
    ],
)
def test_half_a_request_is_forgotten_with_its_connection(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], part: bytes
) -> None:
    with dial(visited) as connection:
        peer = f"peer=127.0.0.1:{connection.getsockname()[1]}"
        shake_hands(connection)
        wait_until(lambda: any(f" connected {peer}" in line for line in new_lines()))
        say_and_leave(connection, part)
    wait_until(lambda: any(f" disconnected {peer}" in line for line in new_lines()))


def test_a_frame_of_100_mb_ends_the_connection_before_it_is_read(
    visited: BrokerProcess, new_lines: Callable[[], list[str]]
) -> None:
    before = memory(visited)
    chunk = b"x" * MIB
    with dial(visited) as connection:
        peer = f"peer=127.0.0.1:{connection.getsockname()[1]}"
        shake_hands(connection)
        wait_until(lambda: any(f" connected {peer}" in line for line in new_lines()))
        with suppress(OSError):
            connection.sendall(frame(b"", more=True) + b"\x02" + struct.pack(">Q", 100 * 1000 * 1000))
            for _ in range(96):
                connection.sendall(chunk)
                assert memory(visited) < before + LITTLE
    wait_until(lambda: any(f" disconnected {peer}" in line for line in new_lines()))


def test_a_frame_of_100_mb_from_a_real_client_is_not_answered(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], topic: str
) -> None:
    with Peer(visited.address, zmq.DEALER, 1.0) as peer:
        peer.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        peer.ask(f"SUB a {topic}")
        peer.send(f"PUT {topic} ".encode() + b"x" * 100_000_000)
        wait_until(lambda: any(" disconnected" in line for line in new_lines()))
        with pytest.raises(zmq.Again):
            peer.receive()
    with Peer(visited.address) as other:
        assert other.got("a", topic) == []
        other.ask(f"UNSUB a {topic}")


# --- ZeroMQ, but not this protocol


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"LOGIN"], "the first frame is not empty"),
        ([b"x", b"LOGIN"], "the first frame is not empty"),
        ([b"", b"LOGIN", b"and more"], "they have more than one frame"),
        ([b"", b"", b"LOGIN"], "they have more than one frame"),
        ([b""], "they have no body"),
    ],
)
def test_a_message_of_other_frames_is_dropped_with_one_line(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], frames: list[bytes], why: str
) -> None:
    with Peer(visited.address) as peer:
        for _ in range(100):
            peer.socket.send_multipart(frames)
        assert peer.ask("LOGIN").startswith("LOGIN:")  # what is right is answered all the same
        peer.socket.send_multipart(frames)
        assert peer.ask("LOGIN").startswith("LOGIN:")

    def lines() -> list[str]:
        return [line for line in new_lines() if "requests are dropped" in line]

    wait_until(lines)
    assert len(lines()) == 1
    assert why in lines()[0]
    assert "peer=127.0.0.1" in lines()[0]


# --- one that does not read


def test_a_peer_that_never_reads_holds_no_memory_and_nobody_up(
    visited: BrokerProcess, new_lines: Callable[[], list[str]], topic: str
) -> None:
    topic = f"{topic}/".ljust(MAX_BYTES, "x")  # so that few requests are a backlog
    with Peer(visited.address) as peer:
        peer.ask(f"SUB a {topic}")
        for _ in range(4):
            peer.ask(f"PUT {topic} {'x' * 10_000}")
    before = memory(visited)
    peak = before
    with Peer(visited.address, deaf=True) as deaf, Peer(visited.address) as other:
        dropping = False
        for _ in range(1000):
            for _ in range(100):
                deaf.send(f"GET a {topic}")
            assert other.ask("LOGIN").startswith("LOGIN:")
            peak = max(peak, memory(visited))
            dropping = any("requests are dropped: the connection sends more" in line for line in new_lines())
            if dropping:
                break
        assert dropping, "no line says that requests are dropped"
        assert peak < before + LITTLE
        assert sum("requests are dropped" in line for line in new_lines()) == 1
        # When it begins to read, it is served again.
        assert deaf.receive().startswith("1::xxx")
        while not deaf.receive().startswith("LOGIN:"):
            deaf.send("LOGIN")
        other.ask(f"UNSUB a {topic}")


def test_a_pipeline_of_large_messages_holds_little_memory(visited: BrokerProcess, topic: str) -> None:
    before = memory(visited)
    peak = pipeline(visited, f"{topic}/large", 500)
    assert peak < before + 300 * MIB


# --- ten thousand of them


def test_ten_thousand_connections_opened_and_dropped(
    visited: BrokerProcess, new_lines: Callable[[], list[str]]
) -> None:
    process = psutil.Process(visited.pid)
    descriptors = process.num_fds()
    starts = [b"", GREETING[:30], GREETING, GREETING + READY]

    def visit(number: int) -> None:
        with dial(visited) as connection:
            if number % 5 < 4:
                connection.sendall(starts[number % 5])
            else:
                shake_hands(connection)
                connection.sendall(frame(b"", more=True) + frame(b"LOGIN"))
            if number % 2:  # without a farewell
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def visits(numbers: range) -> int:
        """Returns the memory that is taken when all have gone."""
        with ThreadPoolExecutor(32) as crowd:
            for _ in crowd.map(visit, numbers):
                pass
        # One that is dropped before it is accepted has never been.
        wait_until(lambda: sum(" disconnected" in line for line in new_lines()) > 0.99 * numbers.stop)
        wait_until(lambda: process.num_fds() <= descriptors + 5)
        return memory(visited)

    some = visits(range(5_000))
    assert visits(range(5_000, 10_000)) < some + LITTLE


def test_clients_that_come_for_one_request_leave_nothing_behind(visited: BrokerProcess, topic: str) -> None:
    process = psutil.Process(visited.pid)
    descriptors = process.num_fds()
    with Peer(visited.address) as peer:
        peer.ask(f"SUB a {topic}")

    def visit(number: int) -> None:
        with dial(visited) as connection:
            shake_hands(connection)
            connection.sendall(frame(b"", more=True) + frame(f"PUT {topic} from {number}".encode()))
            assert read(connection, 7) == frame(b"", more=True) + frame(b"ACK")

    with ThreadPoolExecutor(32) as crowd:
        for _ in crowd.map(visit, range(2_000)):
            pass
    with Peer(visited.address) as peer:
        seen = 0
        while messages := peer.got("a", topic):
            seen += len(messages)
            peer.ask(f"ACK a {topic} {','.join(str(id_) for id_, _ in messages)}")
        assert seen == 2_000
        peer.ask(f"UNSUB a {topic}")
    wait_until(lambda: process.num_fds() <= descriptors + 5)


def test_connections_have_a_limit(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "limits.max_connections=3") as broker:
        with ExitStack() as connected:
            first = connected.enter_context(Peer(broker.address))
            first.acked("REQUEST_ID")
            more = [connected.enter_context(Peer(broker.address, patience=0.3)) for _ in range(10)]
            for peer in more:
                peer.send(request("REQUEST_ID"))
            broker.wait_for_line(
                "connections are refused: there are as many as limits.max_connections allows"
            )
            first.acked("REQUEST_ID")
        # The last of them may not have gone yet, and a request goes down with the connection that is refused.
        with LazyPirate(broker.address, timeout=1, tries=PATIENCE) as later:
            assert ack_body(json.loads(later.ask(request("REQUEST_ID"))))
        assert len(broker.stderr.splitlines()) < 100
