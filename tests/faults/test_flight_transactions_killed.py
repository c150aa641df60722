"""A broker that is killed amid transactions: each is there whole and once, or not at all."""

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place, column, rows_of
from tests.waiting import wait_until

KILLS = 6
ROWS = 20
TOPICS = ("t/0", "t/1", "t/2")
BROKEN = (flight.FlightError, pa.ArrowException, EOFError)


class Worker:
    """Makes transactions over all topics, one after the other. What a broken one had staged is not named again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tries = 0
        self.over = threading.Event()
        self.answered: list[int] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with Peer(self._place, 20) as peer:
                    while not self.over.is_set():
                        self._transaction(peer)
            except BROKEN:
                self.over.wait(0.02)

    def _transaction(self, peer: Peer) -> None:
        counter = peer.act("begin", producer="p")["counter"]
        self._tries += 1
        parts = []
        for topic in TOPICS:
            parts.append(f"{self._tries} {topic}")
            stage = {"producer": "p", "counter": counter, "part": parts[-1]}
            texts = [f"{counter} {row}" for row in range(ROWS)]
            with peer.putting({"topic": topic, "stage": stage}, rows_of([]).schema) as stream:
                for half in (texts[: ROWS // 2], texts[ROWS // 2 :]):
                    stream.send(rows_of(half))
                stream.answers(2)
        result = peer.act("commit", producer="p", counter=counter, parts=parts)
        assert result == {"committed": True}
        self.answered.append(counter)


@pytest.mark.slow
def test_a_transaction_is_there_whole_and_once_or_not_at_all(tmp_path: Path) -> None:
    chance = random.Random(5)
    options = ("--set", 'topics."#".keep=1000000000 messages')
    with BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as broker:
        worker = Worker(broker.door("flight"))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        for _ in range(KILLS):
            goal = len(worker.answered) + 10
            wait_until(lambda goal=goal: len(worker.answered) >= goal)  # type: ignore[misc]
            worker.over.wait(chance.random() * 0.1)  # anywhere in one
            broker.restart()
            with Peer(broker.door("flight")) as peer:
                check(peer, worker.answered)
        worker.over.set()
        thread.join()
        with Peer(broker.door("flight")) as peer:
            check(peer, worker.answered)


def check(peer: Peer, answered: list[int]) -> None:
    """Everything that was answered before is there; and whatever is there is whole, once, and in order."""
    committed = list(answered)
    found = peer.get({"filter": "t/+"})
    for topic in TOPICS:
        texts = [
            payload.decode()
            for name, payload in zip(column(found, "topic"), column(found, "payload"), strict=True)
            if name == topic
        ]
        counters = list(dict.fromkeys(int(text.split()[0]) for text in texts))
        assert texts == [f"{counter} {row}" for counter in counters for row in range(ROWS)]
        assert counters == sorted(counters)
        assert set(committed) <= set(counters)
    assert found.num_rows % (ROWS * len(TOPICS)) == 0
