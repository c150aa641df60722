from collections.abc import Iterator
from itertools import count

import pytest

from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Place, Publisher, StructSubscriber, Subscriber

_numbers = count(1)


@pytest.fixture(scope="session")
def door_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a devices door, for all tests that do it no harm."""
    with BrokerProcess(tmp_path_factory.mktemp("devices") / "data", doors=("devices",)) as process:
        yield process


@pytest.fixture
def place(door_of: BrokerProcess) -> Place:
    return door_of.door("devices")


@pytest.fixture
def publisher(place: Place) -> Iterator[Publisher]:
    with Publisher(place) as one:
        yield one


@pytest.fixture(params=[Subscriber, StructSubscriber], ids=["text", "struct"])
def dialect(request: pytest.FixtureRequest) -> type[Subscriber]:
    found: type[Subscriber] = request.param
    return found


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def client() -> str:
    """An id that no other test uses."""
    return f"C{next(_numbers)}"
