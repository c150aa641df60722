"""A client that is killed, wherever it is, and started again on its folder goes on exactly once."""

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.faults.killed_client import POINTS
from tests.fork_server import FORKS

PROGRAM = Path(__file__).with_name("killed_client.py")
TOTAL = 60
# The message was written to the file, the acknowledgement not yet: nobody can know that it was.
IN_BETWEEN = {"before an acknowledgement is kept", "before a commit"}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("killed") / "data") as process:
        yield process


def run_until_it_lives(*arguments: object) -> int:
    """Runs the client until it gets through, killed at its first call, its second, …; returns how often."""
    for call in count(1):
        job, address, folder, topic, point, *path = arguments
        words = [PROGRAM, job, address, folder, topic, TOTAL, point, call, *path]
        code = FORKS.start([str(word) for word in words], {}).wait()
        if code == 0:
            return call - 1
        assert code == -signal.SIGKILL
    raise AssertionError("unreachable")


@pytest.mark.parametrize("point", [point for point in POINTS if "acknowledgement" not in point])
def test_a_killed_publisher_puts_everything_once_and_in_order(
    standing: BrokerProcess, tmp_path: Path, point: str
) -> None:
    topic = point.replace(" ", "-")
    with Client(standing.address) as reader:
        reader.subscribe(topic)
        kills = run_until_it_lives("put", standing.address, tmp_path / "client", topic, point)
        found = [message.text for message in reader.get_many(topic)]
    assert kills > 0
    assert found == [str(number) for number in range(TOTAL)]


@pytest.mark.parametrize("point", [point for point in POINTS if "outbox" not in point and "put" not in point])
def test_a_killed_subscriber_gets_everything_once_and_in_order(
    standing: BrokerProcess, tmp_path: Path, point: str
) -> None:
    topic = f"get/{point.replace(' ', '-')}"
    got = tmp_path / "got"
    with Client(standing.address) as writer:
        # The reader's own subscription is to begin before the first message.
        with Client(standing.address, tmp_path / "client") as reader:
            reader.subscribe(topic)
        writer.put_many(topic, map(str, range(TOTAL)))
        kills = run_until_it_lives("get", standing.address, tmp_path / "client", topic, point, got)
    lines = got.read_text().splitlines()
    if point in IN_BETWEEN:
        assert len(lines) <= TOTAL + kills
        lines = list(dict.fromkeys(lines))
    assert lines == [str(number) for number in range(TOTAL)]
