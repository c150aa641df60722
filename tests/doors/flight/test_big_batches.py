"""A topic that is fed one message at a time is read in big batches."""

from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, column, rows_of
from tests.doors.zeromq.peers import Peer as ZeroMQPeer

ONE_BY_ONE = 20_000
AHEAD = 200  # requests on their way
MOST = 65_536  # rows in a batch


def feed(address: str, topic: str, count: int, ahead: int = AHEAD) -> None:
    """Puts messages one at a time, with so many requests on their way."""
    with ZeroMQPeer(address) as peer:
        for number in range(count + ahead):
            if number < count:
                peer.send(f"PUT {topic} {number}")
            if number >= ahead:
                assert peer.receive() == "ACK"


@pytest.fixture(scope="module")
def fed(flying: BrokerProcess) -> str:
    """A topic that was fed through the ZeroMQ door."""
    with ZeroMQPeer(flying.address) as peer:
        assert peer.ask("SUB somebody fed/one/by/one") == "ACK"
    feed(flying.address, "fed/one/by/one", ONE_BY_ONE)
    return "fed/one/by/one"


def test_messages_that_came_one_by_one_are_read_in_big_batches(peer: Peer, fed: str) -> None:
    batches = peer.batches(fed)
    found = [int(text) for batch in batches for text in column(batch, "payload")]
    assert found == list(range(ONE_BY_ONE))
    assert len(batches) <= 4, [batch.num_rows for batch in batches]


def test_a_batch_has_as_many_rows_as_are_asked_for(peer: Peer, fed: str) -> None:
    batches = peer.batches({"topic": fed, "batch_rows": 5000})
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == ONE_BY_ONE
    assert max(sizes) <= 5000
    assert len(sizes) <= 8, sizes


def test_a_subscriber_gets_them_in_big_batches_too(peer: Peer, fed: str, name: str) -> None:
    peer.subscribe(name, fed, **{"from": "earliest"})
    sizes = [batch.num_rows for batch in peer.batches({"client": name, "filter": fed})]
    assert sum(sizes) == ONE_BY_ONE
    assert len(sizes) <= 8, sizes


def test_messages_of_several_topics_are_read_in_big_batches(
    flying: BrokerProcess, peer: Peer, topic: str
) -> None:
    with ZeroMQPeer(flying.address) as other:
        for number in range(10):
            assert other.ask(f"SUB somebody {topic}/{number}") == "ACK"
        for number in range(5000):
            other.send(f"PUT {topic}/{number % 10} {number}")
        assert [other.receive() for _ in range(5000)] == ["ACK"] * 5000
    batches = peer.batches({"filter": f"{topic}/+"})
    assert [int(text) for batch in batches for text in column(batch, "payload")] == list(range(5000))
    assert len(batches) <= 5, [batch.num_rows for batch in batches]


def test_messages_each_in_a_commit_of_their_own_are_merged_after_a_restart_as_well(tmp_path: Path) -> None:
    options = ("--durability", "os", "--set", 'topics."#".keep=1000000000 messages')
    with BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker:
        with ZeroMQPeer(broker.address) as peer:
            assert peer.ask("SUB somebody t") == "ACK"
        feed(broker.address, "t", 2000, ahead=1)
        for _ in range(2):
            with Peer(broker.door("flight")) as reader:
                batches = reader.batches("t")
                assert [int(text) for batch in batches for text in column(batch, "payload")] == list(
                    range(2000)
                )
                assert len(batches) <= 2, [batch.num_rows for batch in batches]
            assert broker.stop() == 0
            broker.start()


def test_a_batch_has_at_most_65536_rows_unless_more_are_asked_for(
    place: Place, peer: Peer, topic: str
) -> None:
    peer.put(topic, rows_of(["x"] * 200_000))
    sizes = [batch.num_rows for batch in peer.batches(topic)]
    assert sum(sizes) == 200_000
    assert max(sizes) <= MOST
    assert len(sizes) <= 8, sizes
    with Peer(place) as other:
        small = [batch.num_rows for batch in other.batches({"topic": topic, "batch_rows": 1000})]
    assert sum(small) == 200_000
    assert max(small) <= 1000
