"""A full disk at the Flight door: a sentence, nothing half stored, and as before once there is room."""

from pathlib import Path

from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Said, refused, rows_of
from tests.faults.test_disk import small_disk

__all__ = ["small_disk"]

ROWS = 20
SIZE = 20_000
KEEP = ("--set", 'topics."#".keep=1000000000 messages')


def texts(first: int) -> list[str]:
    return [f"{number} ".ljust(SIZE, "x") for number in range(first, first + ROWS)]


def numbers(peer: Peer) -> list[int]:
    return [int(text.split()[0]) for text in peer.texts("t")]


def test_a_full_disk_refuses_stores_nothing_by_halves_and_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    to: Said = {"topic": "t", "producer": "p"}
    answered = 0
    with BrokerProcess(small_disk / "data", *KEEP, doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            peer.subscribe("reader", "t")
            with (
                refused(flight.FlightUnavailableError) as told,
                peer.putting(to, rows_of([]).schema) as stream,
            ):
                for _ in range(100):
                    stream.send(rows_of(texts(answered + 1)), {"sequence": answered + 1})
                    assert stream.answer()["offset"] == answered + 1
                    answered += ROWS
            assert told.error == "StoreFull"
            assert answered > ROWS
            assert numbers(peer) == list(range(1, answered + 1)), "reading goes on"
            for _ in range(3):
                with refused(flight.FlightUnavailableError):
                    peer.put_texts(to, texts(answered + 1), {"sequence": answered + 1})
            with refused(flight.FlightUnavailableError):
                said = {"topic": "t", "stage": {"producer": "p", "counter": 1, "part": "a"}}
                peer.put_texts(said, texts(1))
            assert peer.topics("t")[0]["rows"] == answered
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert numbers(peer) == list(range(1, answered + 1)), "also after a restart"
            assert peer.act("sequence", producer="p", topic="t") == {"next": answered + 1}
            ballast.unlink()
            for _ in range(2):
                answer = peer.put_texts(to, texts(answered + 1), {"sequence": answered + 1})
                assert answer == {"topic": "t", "offset": answered + 1, "rows": ROWS}
            answered += ROWS
            assert numbers(peer) == list(range(1, answered + 1))
        assert "Traceback" not in broker.stderr
        broker.restart()
        with Peer(broker.door("flight")) as peer:
            assert numbers(peer) == list(range(1, answered + 1))


def test_a_full_disk_is_told_in_place_of_an_answer_and_then_as_a_flight_error(small_disk: Path) -> None:
    to: Said = {"topic": "t", "producer": "p"}
    with (
        BrokerProcess(small_disk / "data", *KEEP, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
        refused(flight.FlightUnavailableError),
        peer.putting(to, rows_of([]).schema) as stream,
    ):
        answer: dict[str, object] | None = {}
        number = 1
        while answer is not None and "error" not in answer:
            stream.send(rows_of(texts(number)), {"sequence": number})
            answer = stream.read()
            number += ROWS
        assert answer is not None
        assert answer["error"] == "StoreFull"


def test_a_client_that_goes_on_without_listening_is_told_in_the_end(small_disk: Path) -> None:
    with (
        BrokerProcess(small_disk / "data", *KEEP, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
        refused(flight.FlightUnavailableError) as told,
        peer.putting({"topic": "t", "producer": "p"}, rows_of([]).schema) as stream,
    ):
        for first in range(1, 2000, ROWS):
            stream.send(rows_of(texts(first)), {"sequence": first})
            stream.read()
    assert told.error == "StoreFull"


def test_many_batches_on_their_way_to_a_full_disk_are_stored_whole_up_to_one(small_disk: Path) -> None:
    with (
        BrokerProcess(small_disk / "data", *KEEP, doors=("flight",)) as broker,
        Peer(broker.door("flight")) as peer,
    ):
        peer.subscribe("reader", "t")
        answered = 0
        to = {"topic": "t", "producer": "p"}
        with refused(flight.FlightUnavailableError), peer.putting(to, rows_of([]).schema) as stream:
            for number in range(40):
                stream.send(rows_of(texts(number * ROWS + 1)), {"sequence": number * ROWS + 1})
            for _ in range(40):
                answered += stream.answer()["rows"]
        stored = numbers(peer)
        assert len(stored) >= answered
        assert len(stored) % ROWS == 0
        assert stored == list(range(1, len(stored) + 1))
