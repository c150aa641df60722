from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from stafeta.frames import JSONQueue, PickleQueue, Queue, XMLQueue
from tests.brokers import BrokerProcess
from tests.doors.frames.peers import JSON, PICKLE, XML, Peer, Place

_numbers = count(1)


@pytest.fixture(scope="session")
def framing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a frames door, for all tests that do it no harm."""
    data = tmp_path_factory.mktemp("frames") / "data"
    with BrokerProcess(data, "--log-level", "debug", doors=("frames",)) as process:
        yield process


@pytest.fixture
def place(framing: BrokerProcess) -> Place:
    return framing.door("frames")


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"/test/{next(_numbers)}"


@pytest.fixture(params=[JSON, XML, PICKLE], ids=["JSON", "XML", "pickle"])
def serializer(request: pytest.FixtureRequest) -> int:
    code: int = request.param
    return code


@pytest.fixture
def connect(place: Place) -> Iterator[Callable[..., Peer]]:
    """Makes peers, and closes them in the end."""
    with ExitStack() as peers:
        yield lambda *options, **more: peers.enter_context(Peer(place, *options, **more))


@pytest.fixture(params=[JSONQueue, XMLQueue, PickleQueue])
def kind(request: pytest.FixtureRequest) -> type[Queue]:
    found: type[Queue] = request.param
    return found


@pytest.fixture
def queue(kind: type[Queue], place: Place, topic: str) -> Iterator[Callable[..., Queue]]:
    made: list[Queue] = []

    def make(role: str, name: str = topic) -> Queue:
        made.append(kind(name, role, *place))
        return made[-1]

    yield make
    for one in made:
        one.cancel()
