"""What one request may cost the others: as much as it is long, and never a standstill."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, request, sequence
from tests.doors.zeromq.peers import put as put_counted

COUNT = 200_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with many messages that `reader` waits for, on the topic `t`."""
    with BrokerProcess(tmp_path_factory.mktemp("filled") / "data") as broker:
        with Peer(broker.address) as peer:
            peer.acked("SUB", "t", "reader")
            for first in range(1, COUNT + 1, 1000):
                sequence(peer, "t", "p", first, *(["x"] * 1000))
        yield broker


def test_an_ack_of_a_hundred_thousand_single_ids_stops_nobody(filled: BrokerProcess) -> None:
    odd = ",".join(str(id_) for id_ in range(3, COUNT, 2))
    memory = psutil.Process(filled.pid).memory_info().rss
    done = threading.Event()
    waits: list[float] = []

    def others() -> None:
        with Peer(filled.address) as peer:
            peer.acked("SUB", "other", "other")
            while not done.is_set():
                begin = time.monotonic()
                peer.ask("PUT other x")
                waits.append(time.monotonic() - begin)

    thread = threading.Thread(target=others)
    thread.start()
    with Peer(filled.address) as peer:
        assert peer.ask(f"ACK reader t {odd}") == "ACK"
        assert peer.ask(f"ACK reader t {odd}") == "ACK"
        done.set()
        thread.join()
        assert peer.got("reader", "t")[:3] == [(1, "x"), (2, "x"), (4, "x")]
    # Seconds, where it used to be half an hour; how many milliseconds it is, `make bench` says.
    assert max(waits) < 5
    assert psutil.Process(filled.pid).memory_info().rss - memory < 200 << 20


def test_what_was_acknowledged_out_of_order_is_so_after_a_kill(filled: BrokerProcess) -> None:
    with Peer(filled.address) as peer:
        assert peer.ask("ACK reader t 10,6,8") == "ACK"
    filled.restart()
    with Peer(filled.address) as peer:
        assert [id_ for id_, _ in peer.got("reader", "t")[:4]] == [1, 2, 4, 12]
        assert peer.ask("ACK reader t 1,2,4") == "ACK"
        assert peer.got("reader", "t")[0] == (12, "x")
    filled.restart()
    with Peer(filled.address) as peer:
        assert peer.got("reader", "t")[0] == (12, "x")


def test_a_put_of_very_many_publications_stops_nobody(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        Peer(broker.address) as peer,
        Peer(broker.address) as other,
    ):
        for name in ("t", "other"):
            peer.acked("SUB", name, "reader")
        peer.send(
            '{"type":"PUT","topic":"t","client_id":"p","body":{"sequence":1,"publications":['
            + ",".join(['"x"'] * 300_000)
            + "]}}"
        )
        waits = []
        for _ in range(20):
            begin = time.monotonic()
            assert other.ask("PUT other x") == "ACK"
            waits.append(time.monotonic() - begin)
        assert peer.receive() == (
            '{"type":"ACK","body":{"first_publication_id":1,"current_publication_id":300000}}'
        )
        assert max(waits) < 5
        assert sequence(peer, "t", "p", 299_999, "x", "x", "x") == (299_999, 300_001)


@pytest.mark.parametrize("limit", [3])
def test_gaps_have_a_limit_and_closing_them_makes_room(tmp_path: Path, limit: int) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--set", f"limits.max_gaps={limit}") as broker,
        Peer(broker.address) as peer,
    ):
        peer.acked("SUB", "t", "reader")
        sequence(peer, "t", "p", 1, *map(str, range(1, 21)))
        assert peer.ask("ACK reader t 3,5,7") == "ACK"
        assert "as many as limits.max_gaps allows" in peer.ask("ACK reader t 9,11")
        assert [id_ for id_, _ in peer.got("reader", "t")][:4] == [1, 2, 4, 6], "nothing of it was done"
        assert peer.ask("ACK reader t 4,9") == "ACK"
        assert peer.ask("ACK reader t 1,2,6,8") == "ACK"
        assert peer.got("reader", "t")[0][0] == 10


def test_producers_have_a_limit_and_those_who_are_refused_leave_nothing(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--set", "limits.max_producers=2") as broker,
        Peer(broker.address) as peer,
    ):
        peer.acked("SUB", "t", "reader")
        for name in "abcdef":
            assert peer.told("PUT", "t", name, sequence=5, publications=["early"])["type"] == "NAK"
        assert sequence(peer, "t", "a", 1, "one") == (1, 1)
        assert sequence(peer, "t", "b", 1, "two") == (2, 2)
        for body in ({"publication": "x", "counter": 1}, {"publications": ["x"], "sequence": 1}):
            assert "as many as limits.max_producers allows" in peer.refused("PUT", "t", "c", **body)
        assert sequence(peer, "t", "a", 2, "three") == (3, 3)
        assert peer.acked("PUT", "t", "c", publication="without a counter") == {"current_publication_id": 4}


def test_of_those_who_draw_counters_the_longest_silent_is_forgotten(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--set", "limits.max_producers=3") as broker:
        with Peer(broker.address) as peer:
            peer.acked("SUB", "t", "reader")
            assert sequence(peer, "t", "counting", 1, "one") == (1, 1)
            for id_, name in enumerate("abacbc", 2):
                assert put_counted(peer, "t", name, id_, "x") == id_
            assert put_counted(peer, "t", "c", 7, "x") == 7
            assert put_counted(peer, "t", "b", 6, "x") == 6
            assert put_counted(peer, "t", "a", 4, "x") == 8, "it was forgotten when c came"
        broker.stop()
        broker.start()
        with Peer(broker.address) as peer:
            assert put_counted(peer, "t", "a", 4, "x") == 8
            assert sequence(peer, "t", "counting", 1, "one", "two") == (1, 9)
    with closing(sqlite3.connect(tmp_path / "data" / "stafeta.db")) as database:
        assert database.execute("SELECT count(*) FROM producer").fetchone()[0] <= 3


@pytest.mark.parametrize("client", ["x" * 256, "a b", "flight/p", "counter/p", "devices/p", "x" * 5_000_000])
@pytest.mark.parametrize(
    "body", [{"publication": "x"}, {"publication": "x", "counter": 1}, {"publications": ["x"], "sequence": 1}]
)
def test_the_client_id_of_a_put_is_checked(
    dealer: Peer, topic: str, client: str, body: dict[str, object]
) -> None:
    dealer.acked("SUB", topic, "a")
    sentence = dealer.refused("PUT", topic, client, **body)
    assert "The client id" in sentence
    assert len(sentence) < 500


def test_what_is_sent_behind_a_get_that_waits_holds_up_nobody(tmp_path: Path) -> None:
    options = ("--set", "limits.max_pending=1MiB", "--set", "zeromq.max_backlog=1MiB")
    with BrokerProcess(tmp_path / "data", *options) as broker, Peer(broker.address) as greedy:
        greedy.acked("SUB", "t", "reader")
        greedy.send(request("GET", "t", "reader", last_publication_id=0, limit=1, wait=30))
        for _ in range(100):
            greedy.send("PUT t " + "x" * 100_000)
        begin = time.monotonic()
        with Peer(broker.address) as other:
            other.acked("REQUEST_ID")
        assert time.monotonic() - begin < 25


def test_large_requests_that_are_sent_ahead_are_all_answered(tmp_path: Path) -> None:
    options = ("--set", "limits.max_pending=1MiB", "--set", "zeromq.max_backlog=1MiB")
    with BrokerProcess(tmp_path / "data", *options) as broker, Peer(broker.address) as peer:
        peer.acked("SUB", "t", "reader")
        for number in range(30):
            peer.send(request("PUT", "t", "p", sequence=1 + 2000 * number, publications=["y" * 100] * 2000))
        for number in range(30):
            assert f'"current_publication_id":{2000 * (number + 1)}' in peer.receive()
