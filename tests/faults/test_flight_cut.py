"""A connection that is cut amid a batch: a batch is there whole or not at all, and what is sent again is there once."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, column, numbered, rows_of, works
from tests.faults.cutting_relay import CuttingRelay
from tests.waiting import wait_until

ROWS, BATCHES = 500, 12
PADDING = "." * 200  # a batch is more than 100,000 bytes
BROKEN = (flight.FlightError, pa.ArrowException, EOFError)
_numbers = count(1)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("cut") / "data"
    with BrokerProcess(data, "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)) as process:
        yield process
        assert "Traceback" not in process.stderr
        with Peer(process.door("flight")) as peer:
            wait_until(lambda: peer.act("stats")["streams"] == 0)  # nobody is left behind


@pytest.fixture
def topic() -> str:
    return f"cut/{next(_numbers)}"


def texts(first: int) -> list[str]:
    return [text + PADDING for text in numbered(ROWS, first)]


def send(peer: Peer, topic: str, producer: str, answered: list[int]) -> None:
    """Puts what was not answered yet."""
    to = {"topic": topic, "producer": producer} if producer else {"topic": topic}
    left = list(range(1, ROWS * BATCHES, ROWS))[len(answered) :]
    with peer.putting(to, rows_of([]).schema) as stream:
        for first in left:
            stream.send(rows_of(texts(first)), {"sequence": first} if producer else b"")
        for first in left:
            assert stream.answer()["rows"] == ROWS
            answered.append(first)


@pytest.mark.parametrize("limit", [300, 3_000, 60_000, 150_000, 400_000, 777_777, 1_200_000])
def test_what_was_cut_off_is_sent_again_and_there_once(
    standing: BrokerProcess, topic: str, limit: int
) -> None:
    answered: list[int] = []
    with CuttingRelay(standing.door("flight"), sent=limit) as relay:
        with Peer(relay.place) as peer, pytest.raises(BROKEN):
            send(peer, topic, "p-" + topic, answered)
        assert relay.cut.is_set()
        with Peer(standing.door("flight")) as peer:
            stored = peer.rows(topic)
            assert stored >= len(answered) * ROWS
            assert stored % ROWS == 0, "a batch is stored whole or not at all"
        with Peer(relay.place) as peer:
            send(peer, topic, "p-" + topic, answered)
            found = peer.texts(topic)
    assert [text.rstrip(".") for text in found] == numbered(ROWS * BATCHES)
    assert works(standing)


@pytest.mark.parametrize("limit", [1, 100, 300, 600])
def test_an_answer_that_is_cut_off_is_given_again(standing: BrokerProcess, topic: str, limit: int) -> None:
    answered: list[int] = []
    with CuttingRelay(standing.door("flight"), received=limit) as relay:
        with Peer(relay.place) as peer, pytest.raises(BROKEN):
            send(peer, topic, "p-" + topic, answered)
        with Peer(relay.place) as peer:
            send(peer, topic, "p-" + topic, answered)
            assert column(peer.get({"topic": topic, "columns": ["offset"]}), "offset") == list(
                range(1, ROWS * BATCHES + 1)
            )
            found = peer.texts(topic)
    assert [text.rstrip(".") for text in found] == numbered(ROWS * BATCHES)


@pytest.mark.parametrize("limit", [60_000, 500_000])
def test_without_numbers_a_batch_is_whole_or_not_there(
    standing: BrokerProcess, topic: str, limit: int
) -> None:
    with (
        CuttingRelay(standing.door("flight"), sent=limit) as relay,
        Peer(relay.place) as peer,
        pytest.raises(BROKEN),
    ):
        send(peer, topic, "", [])
    with Peer(standing.door("flight")) as peer:
        wait_until(lambda: peer.act("stats")["pending"] == 0)
        rows = peer.rows(topic)
        assert rows % ROWS == 0
        assert rows * (len(PADDING) + 8) <= limit
        assert not rows or [text.rstrip(".") for text in peer.texts(topic)] == numbered(rows)


def test_readers_that_are_cut_off_at_the_beginning_are_let_go(standing: BrokerProcess, topic: str) -> None:
    with Peer(standing.door("flight")) as peer:
        send(peer, topic, "", [])
        for limit in range(1, 600, 20):
            with (
                CuttingRelay(standing.door("flight"), received=limit) as relay,
                Peer(relay.place, 5) as other,
                suppress(*BROKEN),
            ):
                other.get(topic)
        wait_until(lambda: peer.act("stats")["streams"] == 0)


def test_a_reader_that_is_cut_off_can_go_on(standing: BrokerProcess, topic: str) -> None:
    with Peer(standing.door("flight")) as peer:
        peer.subscribe("reader", topic)
        send(peer, topic, "", [])
    found: list[int] = []
    with CuttingRelay(standing.door("flight"), received=500_000) as relay:
        for _ in range(2):
            with Peer(relay.place) as peer:
                ticket = {"topic": topic, "from": len(found) + 1, "batch_rows": 100}
                try:
                    for batch in iter(peer.reading(ticket).batch, None):
                        found += column(batch, "offset")
                except BROKEN:
                    assert relay.cut.is_set()
    assert found == list(range(1, ROWS * BATCHES + 1))


def test_a_subscriber_that_is_cut_off_gets_again_what_it_has_not_acknowledged(
    standing: BrokerProcess, topic: str
) -> None:
    ticket = {"client": "cut", "filter": topic, "batch_rows": 100}
    with Peer(standing.door("flight")) as peer:
        peer.subscribe("cut", topic)
        send(peer, topic, "", [])
        end = acknowledged = 1
        with (
            CuttingRelay(standing.door("flight"), received=500_000) as relay,
            Peer(relay.place) as other,
            suppress(*BROKEN),
        ):
            for batch in iter(other.reading(ticket).batch, None):
                end = column(batch, "offset")[-1] + 1
                if end < 1000:
                    peer.ack("cut", topic, (topic, None, end))
                    acknowledged = end
        assert relay.cut.is_set()
        assert end > 1000
        left = column(peer.get(ticket), "offset")
        assert left == list(range(acknowledged, ROWS * BATCHES + 1))
