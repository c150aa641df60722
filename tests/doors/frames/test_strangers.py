"""What peers do that they should not: each is closed with a clear line in the log, and nobody else notices."""

import json
import pickle
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.doors.frames.attacks import ATTACKS, MARK, XML_ATTACKS, shared
from tests.doors.frames.peers import HEAD, JSON, PICKLE, XML, Peer, Place
from tests.waiting import wait_until

Connect = Callable[..., Peer]


class Bystander:
    """A publisher and a subscriber who go on meanwhile."""

    def __init__(self, connect: Connect, topic: str) -> None:
        self.topic = f"{topic}/bystander"
        self.publisher, self.subscriber = connect(JSON), connect(PICKLE)
        self.subscriber.subscribe(self.topic)

    def check(self) -> None:
        self.publisher.publish(self.topic, "as ever")
        assert self.subscriber.get(1) == [(self.topic, "as ever")]


@pytest.fixture
def bystander(connect: Connect, topic: str) -> Bystander:
    return Bystander(connect, topic)


def address(peer: Peer) -> str:
    host, port = peer.socket.getsockname()
    return f"{host}:{port}"


def is_refused(broker: BrokerProcess, peer: Peer) -> str:
    """Waits until the peer is closed; returns the line of the log on it."""
    assert peer.is_closed()
    end = f"peer={address(peer)}"  # another door may have had a peer with this address before

    def line() -> str | None:
        lines = broker.stderr.splitlines()
        return next((one for one in reversed(lines) if " frames: " in one and one.endswith(end)), None)

    found = wait_until(line)
    assert found is not None
    return found


# --- attacks


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_by_pickle_ends_the_connection_and_nothing_runs(
    name: str, connect: Connect, framing: BrokerProcess, bystander: Bystander
) -> None:
    peer = connect(PICKLE)
    peer.body(ATTACKS[name])
    line = is_refused(framing, peer)
    assert "WARN  frames: the connection is closed: The pickle " in line
    assert not Path(MARK).exists(), "the broker runs in this folder"
    bystander.check()


@pytest.mark.parametrize("name", XML_ATTACKS)
def test_an_attack_by_xml_ends_the_connection(
    name: str, connect: Connect, framing: BrokerProcess, bystander: Bystander
) -> None:
    peer = connect(XML)
    peer.body(XML_ATTACKS[name])
    line = is_refused(framing, peer)
    assert "WARN  frames: the connection is closed: The " in line
    assert "root:" not in framing.stderr
    bystander.check()


@pytest.mark.parametrize(
    ("serializer", "body", "why"),
    [
        (PICKLE, shared("list", 40), "larger than 1,048,576 bytes"),
        (PICKLE, b"\x80\x02})" + b"2\x86" * 60 + b"Ns.", "too large or nested too deep"),
        (PICKLE, b"\x80\x02})" + b"\x85" * 60_000 + b"Ns.", "too large or nested too deep"),
        (
            PICKLE,
            pickle.dumps({"command": "publish", "topic": "/a", "message": 1 << 500_000}),
            "4,300 digits",
        ),
        (JSON, b'{"command":"publish","topic":"/a","message":%b}' % (b"[" * 60_000), "nested too deep"),
        (JSON, b'{"command":"publish","topic":"/a","message":NaN}', "NaN is no JSON"),
        (JSON, b'{"command":%b}' % (b"[" * 500 + b"]" * 500), "is no verb"),
        (JSON, b'{"command":"\\ud800\\u0000\\n"}', "is no verb"),
        (JSON, b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bomb_ends_the_connection(
    serializer: int, body: bytes, why: str, connect: Connect, framing: BrokerProcess, bystander: Bystander
) -> None:
    peer = connect(serializer)
    peer.body(body)
    assert why in is_refused(framing, peer)
    bystander.check()


def test_numbers_of_any_size_pass(connect: Connect, topic: str) -> None:
    publisher, subscribers = connect(JSON), [connect(XML), connect(PICKLE), connect(JSON)]
    for subscriber in subscribers:
        subscriber.subscribe(topic)
    digits = "9" * 50_000
    publisher.body(b'{"command":"publish","topic":"%b","message":%b}' % (topic.encode(), digits.encode()))
    publisher.publish(topic, "after")
    assert subscribers[0].get(2) == subscribers[1].get(2) == [(topic, digits), (topic, "after")]
    assert json.loads(subscribers[2].hear_body(), parse_int=str)["message"] == digits


def test_a_message_from_another_door_that_is_too_large_is_cut_and_the_next_is_not(
    connect: Connect, framing: BrokerProcess, serializer: int, topic: str
) -> None:
    subscriber = connect(serializer)
    subscriber.subscribe(topic)
    with Client(framing.address) as client:
        client.put(topic, "ș" * 100_000)
        client.put(topic, "after")
    (_, cut), after = subscriber.get(2)
    assert 32_000 < len(cut) < 32_768
    assert cut == "ș" * len(cut)
    assert after == (topic, "after")
    framing.wait_for_line("a message was cut to fit a frame")


# --- frames that are none


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x03", "A frame has the serializer 3"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "A frame has the serializer 71"),
        (b"\x00\x00\x00", "length 0"),
        (b"\x00\x00\x02{}", "it has neither"),
        (b"\x00\x00\x03[1]", "'{' is missing"),
        (HEAD.pack(0, 23) + b'{"command":"subscribe"}', "'topic' must be text"),
        (HEAD.pack(0, 24) + b'{"command":"listTopics"}' + b"\x02\x00\x01.", "this connection's is 0 (JSON)"),
    ],
)
def test_a_connection_that_cannot_be_followed_is_closed(
    data: bytes, why: str, connect: Connect, framing: BrokerProcess, bystander: Bystander
) -> None:
    peer = connect()
    peer.socket.sendall(data)
    if b"listTopics" in data:
        assert peer.hear()["command"] == "listTopics", "what came before is answered"
    assert why in is_refused(framing, peer)
    bystander.check()


def test_what_came_before_the_mistake_is_published(connect: Connect, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic)
    publisher.socket.sendall(publisher.framed("publish", topic=topic, message="good") + b"\x00\x00\x00")
    assert subscriber.get(1) == [(topic, "good")]
    assert publisher.is_closed()


def test_half_a_frame_at_the_end_is_a_line_for_those_who_look_closely(
    connect: Connect, framing: BrokerProcess
) -> None:
    peer = connect()
    peer.socket.sendall(b"\x00\x01")
    peer.socket.shutdown(socket.SHUT_WR)
    line = is_refused(framing, peer)
    assert "DEBUG" in line
    assert "ended within a frame" in line


def test_a_connection_that_says_nothing_stays_open_and_gets_nothing(
    connect: Connect, bystander: Bystander
) -> None:
    peer = connect()
    bystander.check()
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.socket.recv(1)


@pytest.mark.parametrize(
    ("verb", "name"),
    [("publish", "a b"), ("publish", "/a/#"), ("publish", ""), ("subscribe", "a\nb"), ("subscribe", "a#")],
)
def test_a_name_that_is_not_allowed_is_skipped_with_a_line(
    verb: str, name: str, connect: Connect, framing: BrokerProcess, bystander: Bystander
) -> None:
    peer = connect(PICKLE)
    for _ in range(3):
        peer.say(verb, topic=name, message="x")
    peer.subscribe(bystander.topic)
    bystander.check()
    assert peer.get(1) == [(bystander.topic, "as ever")], "the connection goes on"
    framing.wait_for_line(f"peer={address(peer)}")
    lines = [line for line in framing.stderr.splitlines() if f"peer={address(peer)}" in line]
    assert sum("WARN" in line for line in lines) == 1, "not a line for each"
    assert f"a command is skipped: {'In' if name == 'a#' else 'The topic'} " in lines[0]


# --- peers that do not read


def test_one_that_asks_and_never_reads_costs_no_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as publisher, Peer(place, receive_buffer=4096) as asking:
            for number in range(500):
                publisher.publish(f"/{number:03}{'x' * 240}", 1)
            publisher.topics()
            process = psutil.Process(broker.pid)
            before = process.memory_info().rss
            asking.socket.setblocking(False)
            question = asking.framed("listTopics") * 1000
            with suppress(BlockingIOError):
                while True:
                    asking.socket.send(question)
            for _ in range(20):
                publisher.topics()
            assert process.memory_info().rss - before < 30e6
            asking.socket.setblocking(True)
            assert [len(asking.hear()["topics"]) > 200 for _ in range(50)] == [True] * 50


def test_one_that_publishes_to_itself_and_never_reads_is_not_stuck(connect: Connect, topic: str) -> None:
    peer = connect(receive_buffer=4096)
    peer.subscribe(topic)
    for number in range(200):
        peer.publish(topic, *[f"{number}-{'x' * 10_000}"] * 5)
    got = [message for _, message in peer.get(1000)]
    assert got == [f"{number}-{'x' * 10_000}" for number in range(200) for _ in range(5)]


def test_one_that_falls_too_far_behind_is_told_and_let_go(tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "data", "--set", "limits.max_lag=1000", "--set", "frames.buffer=4KiB", doors=("frames",)
    ) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as publisher, Peer(place, receive_buffer=4096) as slow, Peer(place) as other:
            slow.subscribe("/a")
            for _ in range(200):
                publisher.publish("/a", *["x" * 5_000] * 20)
                publisher.topics()
            line = broker.wait_for_line("It is disconnected.")
            assert "may be 1000 behind (limits.max_lag)" in line
            last = {}
            with suppress(EOFError):
                while True:
                    last = slow.hear()
            assert last["topic"] == "$sys/lagging"
            assert "messages behind on '/a'" in last["message"]
            assert other.topics() == ["/a"]


def test_many_connections_cost_little(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * count)), hard))
    with BrokerProcess(tmp_path / "data", doors=("frames",)) as broker:
        place: Place = broker.door("frames")
        with Peer(place) as publisher:
            publisher.publish("/a", 1)
            publisher.topics()
            process = psutil.Process(broker.pid)
            before = process.memory_info().rss
            peers = [Peer(place) for _ in range(count)]
            for peer in peers:
                peer.say("subscribe", topic="/a")
                assert peer.get(1) == [("/a", 1)]
            each = (process.memory_info().rss - before) / count
            print(f"{each / 1024:.1f} KiB each")
            assert each < 20 * 1024
            publisher.publish("/a", 2)
            for peer in peers:
                assert peer.get(1) == [("/a", 2)]
                peer.socket.close()
