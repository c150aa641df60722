"""A broker that is killed while Flight clients work: what was answered is there, and nothing is there twice."""

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, column, numbered, rows_of, texts_in
from tests.waiting import wait_until

KILLS = 8
AHEAD = 6
ROWS = 50
END = "the end"
BROKEN = (flight.FlightError, pa.ArrowException, EOFError)
KEEP = ("--set", 'topics."#".keep=1000000000 messages')


class Work:
    """Producers and a subscriber, for as long as the broker is being killed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._place = broker.door("flight")
        self.over = threading.Event()
        self.answered: dict[
            str, list[tuple[int, int | None]]
        ] = {}  # by producer: the batch's first number, its offset
        self.received: list[tuple[int, str]] = []
        self.repeated = 0
        self.errors: list[BaseException] = []

    def produce(self, name: str) -> None:
        """Sends again from the first batch that was not answered."""
        done = self.answered.setdefault(name, [])
        while not self.over.is_set():
            try:
                with Peer(self._place, 20) as peer:
                    self._put(peer, name, done)
            except BROKEN:
                self.over.wait(0.02)

    def _put(self, peer: Peer, name: str, done: list[tuple[int, int | None]]) -> None:
        on_their_way: deque[int] = deque()
        number = len(done) * ROWS + 1
        with peer.putting({"topic": "t", "producer": name}, rows_of([]).schema) as stream:
            while on_their_way or not self.over.is_set():
                if len(on_their_way) < AHEAD and not self.over.is_set():
                    texts = [f"{name} {one}" for one in range(number, number + ROWS)]
                    stream.send(rows_of(texts), {"sequence": number})
                    on_their_way.append(number)
                    number += ROWS
                else:
                    answer = stream.answer()
                    assert (answer["topic"], answer["rows"]) == ("t", ROWS)
                    done.append((on_their_way.popleft(), answer["offset"]))

    def subscribe(self, name: str) -> None:
        """Acknowledges batch by batch; what comes again was not acknowledged."""
        acknowledged = 0
        while not self.received or self.received[-1][1] != END:
            try:
                with (
                    Peer(self._place, 60) as peer,
                    peer.reading({"client": name, "filter": "#", "follow": True}) as stream,
                ):
                    while not self.received or self.received[-1][1] != END:
                        batch = stream.batch()
                        if batch is None:
                            raise EOFError
                        acknowledged = self._take(peer, name, batch, acknowledged)
            except BROKEN:
                threading.Event().wait(0.02)

    def _take(self, peer: Peer, name: str, batch: pa.RecordBatch, acknowledged: int) -> int:
        rows = list(zip(column(batch, "offset"), column(batch, "payload"), strict=True))
        assert rows[0][0] > acknowledged, "what was acknowledged has come again"
        last = self.received[-1][0] if self.received else 0
        fresh = [(offset, payload.decode()) for offset, payload in rows if offset > last]
        self.repeated += len(rows) - len(fresh)
        self.received += fresh
        end: int = rows[-1][0] + 1
        peer.ack(name, "#", ("t", None, end))
        return end - 1

    def start(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except BaseException as error:  # noqa: BLE001 - told by the test itself
                self.errors.append(error)
                self.over.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def go_on(self, batches: int) -> None:
        """Waits until so many more batches are answered."""
        goal = sum(map(len, self.answered.values())) + batches
        wait_until(lambda: sum(map(len, self.answered.values())) >= goal or self.over.is_set())


@pytest.mark.slow
def test_every_row_is_there_once_through_eight_kills(tmp_path: Path) -> None:
    chance = random.Random(11)
    with BrokerProcess(tmp_path / "data", *KEEP, doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            peer.subscribe("reader", "#")
        work = Work(broker)
        producers = [work.start(work.produce, name) for name in ("p", "q")]
        subscriber = work.start(work.subscribe, "reader")
        for _ in range(KILLS):
            work.go_on(20)
            work.over.wait(chance.random() * 0.2)  # anywhere between two answers
            broker.restart()
        work.go_on(20)
        work.over.set()
        for thread in producers:
            thread.join()
        with Peer(broker.door("flight")) as peer:
            peer.put_texts("t", [END])
            subscriber.join()
            stored = peer.texts("t")
        assert not work.errors, work.errors
        counts = {name: len(done) for name, done in work.answered.items()}
        print(f"batches answered: {counts}; rows: {len(stored)}; came again: {work.repeated}")
        for name, done in work.answered.items():
            mine = [text for text in stored if text.startswith(f"{name} ")]
            assert mine == [f"{name} {number}" for number in range(1, len(done) * ROWS + 1)]
            for first, offset in done:
                assert offset is None or stored[offset - 1] == f"{name} {first}"
        assert work.received == list(enumerate(stored, 1))


def test_what_was_answered_before_a_kill_is_there_and_the_rest_can_be_sent_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *KEEP, doors=("flight",)) as broker:
        to: dict[str, Any] = {"topic": "t", "producer": "p"}
        with (
            Peer(broker.door("flight")) as peer,
            suppress(*BROKEN),
            peer.putting(to, rows_of([]).schema) as stream,
        ):
            for first in range(1, 1001, 100):
                stream.send(rows_of(numbered(100, first)), {"sequence": first})
            stream.answers(3)
            broker.restart()
            stream.answers(8)
            raise AssertionError("nothing has broken")
        with Peer(broker.door("flight")) as peer:
            stored = peer.texts("t")
            assert len(stored) >= 300
            assert len(stored) % 100 == 0, "a batch is stored whole or not at all"
            assert stored == numbered(len(stored))
            with peer.putting(to, rows_of([]).schema) as stream:
                for first in range(201, 1001, 100):
                    stream.send(rows_of(numbered(100, first)), {"sequence": first})
                assert [answer["offset"] for answer in stream.answers(8)] == list(range(201, 1001, 100))
            assert peer.texts("t") == numbered(1000)


def test_a_follower_can_go_on_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *KEEP, doors=("flight",)) as broker:
        with Peer(broker.door("flight")) as peer:
            peer.put_texts("t", numbered(10))
            with peer.reading({"topic": "t", "follow": True}) as stream:
                assert stream.texts(10) == numbered(10)
                broker.restart()
                with pytest.raises(flight.FlightUnavailableError):
                    stream.batch()
        with Peer(broker.door("flight")) as peer:
            peer.put_texts("t", numbered(5, 11))
            with peer.reading({"topic": "t", "from": 11, "follow": True}) as stream:
                assert texts_in(stream.rows(5)) == numbered(5, 11)
