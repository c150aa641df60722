"""Clients that go without a word, and a broker that leaves while clients are at work."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, numbered, rows_of, works
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
READER = """
from tests.doors.flight.peers import Peer
stream = Peer((%r, %d)).reading({"topic": %r, "follow": True})
print(stream.texts(1), flush=True)
stream.texts(1 << 60 if %r else 1)
input()
"""
PRODUCER = """
from tests.doors.flight.peers import Peer, rows_of
with Peer((%r, %d)).putting(%r, rows_of([]).schema) as stream:
    stream.send(rows_of(["one"]))
    print(stream.answer(), flush=True)
    input()
"""


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may stop."""
    with BrokerProcess(
        tmp_path / "data", "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)
    ) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.mark.parametrize("program", ["deaf", "reader", "producer"])
def test_a_client_that_is_killed_is_let_go(
    flying: BrokerProcess, place: Place, peer: Peer, topic: str, program: str
) -> None:
    peer.put(topic, rows_of(["x" * 1000] * 30_000))
    wait_until(lambda: peer.act("stats")["streams"] == 0)  # those of earlier tests
    text = (
        PRODUCER % (*place, topic) if program == "producer" else READER % (*place, topic, program == "reader")
    )
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline()
        assert peer.act("stats")["streams"] == 1
        client.kill()
    wait_until(lambda: peer.act("stats")["streams"] == 0)
    assert works(flying)


@pytest.mark.parametrize("follow", [True, False])
def test_readers_that_are_gone_before_the_first_batch_are_let_go(
    place: Place, peer: Peer, topic: str, name: str, follow: bool
) -> None:
    peer.put(topic, rows_of(["x" * 1000] * 1000))
    peer.subscribe(name, topic, **{"from": "earliest"})
    wait_until(lambda: peer.act("stats")["streams"] == 0)  # those of earlier tests
    subscriptions = peer.act("stats")["subscriptions"]

    def come_and_go(number: int) -> None:
        with Peer(place) as one:
            for _ in range(15):
                one.reading({"topic": topic, "follow": follow}).cancel()
                one.reading({"filter": f"{topic}/#", "follow": follow}).cancel()
            one.reading({"client": name, "filter": topic, "follow": follow}).cancel()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(come_and_go, range(6)))
    wait_until(lambda: peer.act("stats")["streams"] == 0)
    assert peer.act("stats")["subscriptions"] == subscriptions
    assert [one["subscribers"] for one in peer.topics(topic)] == [1]


def test_a_broker_leaves_although_a_producer_is_silent(leaving: BrokerProcess) -> None:
    with Peer(leaving.door("flight")) as peer:
        stream = peer.putting("t", rows_of([]).schema)
        stream.send(rows_of(numbered(3)))
        assert stream.answer()["offset"] == 1
        assert leaving.stop() == 0
        with pytest.raises(flight.FlightUnavailableError):
            stream.answer()


def test_a_broker_leaves_although_a_reader_does_not_read(leaving: BrokerProcess) -> None:
    with Peer(leaving.door("flight")) as peer:
        peer.put("t", rows_of(["x" * 1000] * 30_000))
        with peer.reading({"topic": "t", "follow": True}) as stream:
            assert stream.batch() is not None
            assert leaving.stop() == 0


def test_what_was_answered_before_the_broker_left_is_there(leaving: BrokerProcess) -> None:
    answered = 0
    with Peer(leaving.door("flight")) as peer, pytest.raises(flight.FlightUnavailableError):
        answered = put_until_it_leaves(leaving, peer)
    leaving.start()
    with Peer(leaving.door("flight")) as peer:
        found = peer.texts("t")
        assert found == numbered(len(found))
        assert len(found) >= answered
        assert len(found) % 10 == 0


def put_until_it_leaves(broker: BrokerProcess, peer: Peer) -> int:
    answered = 0
    with peer.putting({"topic": "t", "producer": "p"}, rows_of([]).schema) as stream:
        for first in range(1, 10_000, 10):
            stream.send(rows_of(numbered(10, first)), {"sequence": first})
            if first > 100:
                answered += stream.answer()["rows"]
            if first == 2001:
                assert broker.stop() == 0
    return answered


def test_who_comes_while_the_broker_is_away_is_told_so(leaving: BrokerProcess) -> None:
    place = leaving.door("flight")
    assert leaving.stop() == 0
    with Peer(place) as peer:
        with pytest.raises(flight.FlightUnavailableError):
            peer.put_texts("t", ["x"])
        with pytest.raises(flight.FlightUnavailableError):
            peer.get("t")
        with pytest.raises(flight.FlightUnavailableError):
            peer.act("stats")
