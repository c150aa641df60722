"""A Flight producer that is killed, wherever it is, and started again puts everything once and in order."""

import os
import random
from pathlib import Path

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer
from tests.fork_server import FORKS

TOTAL = 3000


def test_a_killed_producer_puts_everything_once_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(4)
    acknowledged: list[tuple[int, int, int]] = []
    kills = 0
    with BrokerProcess(
        tmp_path / "data", "--set", 'topics."#".keep=1000000000 messages', doors=("flight",)
    ) as broker:
        host, port = broker.door("flight")
        words = ["-m", "tests.faults.flight_producer", host, str(port), "t", "p", str(TOTAL)]
        while True:
            reading, writing = os.pipe()
            producer = FORKS.start(words, os.environ, stdout=writing)
            os.close(writing)
            patience = chance.randrange(20)
            with os.fdopen(reading) as lines:
                for line in lines:
                    if not line.endswith("\n"):
                        break  # killed amid it
                    first, rows, offset = map(int, line.split())
                    acknowledged.append((first, rows, offset))
                    patience -= 1
                    if patience == 0 and kills < 8:
                        producer.kill()
                        kills += 1
            if producer.wait() == 0:
                break
        with Peer(broker.door("flight")) as peer:
            assert peer.texts("t") == [str(number) for number in range(1, TOTAL + 1)]
    assert kills > 4
    assert all(first == offset for first, _, offset in acknowledged)
