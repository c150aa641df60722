from collections.abc import Iterator
from itertools import count

import pytest

from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Peer, Place

_numbers = count(1)


@pytest.fixture(scope="session")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a Flight door that keeps everything, for all tests that do it no harm."""
    data = tmp_path_factory.mktemp("flight") / "data"
    options = ("--set", 'topics."#".keep=1000000000 messages', "--durability", "os", "--log-level", "debug")
    with BrokerProcess(data, *options, doors=("flight", "devices")) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def place(flying: BrokerProcess) -> Place:
    return flying.door("flight")


@pytest.fixture
def peer(place: Place) -> Iterator[Peer]:
    with Peer(place) as one:
        yield one


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"flight/{next(_numbers)}"


@pytest.fixture
def name() -> str:
    """A client, or a producer, that no other test uses."""
    return f"somebody-{next(_numbers)}"
