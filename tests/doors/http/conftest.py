from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.brokers import BrokerProcess
from tests.doors.http.peers import Events, Peer, Place
from tests.doors.zeromq.peers import Peer as ZeroMQPeer

_numbers = count(1)


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with an HTTP door, for all tests that do it no harm. It keeps what is below `kept/`."""
    data = tmp_path_factory.mktemp("http") / "data"
    options = ("--durability", "os", "--set", 'topics."kept/#".keep=1d')
    with BrokerProcess(data, *options, doors=("http",)) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def place(serving: BrokerProcess) -> Place:
    return serving.door("http")


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses, whose messages stay."""
    return f"kept/{next(_numbers)}"


@pytest.fixture
def peer(place: Place) -> Iterator[Peer]:
    with Peer(place) as made:
        yield made


@pytest.fixture
def events(place: Place) -> Iterator[Callable[..., Events]]:
    """Opens streams, and closes them in the end."""
    with ExitStack() as closing:
        yield lambda *headers, **parameters: closing.enter_context(Events(place, *headers, **parameters))


@pytest.fixture
def serving_zeromq(serving: BrokerProcess, topic: str) -> str:
    """A ZeroMQ client that subscribes to the topic; its id."""
    with ZeroMQPeer(serving.address) as zeromq:
        assert zeromq.ask(f"SUB z{next(_numbers)}z {topic}") == "ACK"
    return f"z{next(_numbers) - 1}z"
