from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.brokers import BrokerProcess
from tests.conformance.dialects import Connect, Dialect, Stranger, new_name
from tests.conformance.every import DOORS

_numbers = count(1)


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker of all tests that do it no harm, with every door open."""
    data = tmp_path_factory.mktemp("conformance") / "data"
    options = ("--set", "durability=os", "--set", "log_level=debug")
    with BrokerProcess(data, *options, doors=DOORS) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses. People who use frames begin them with a slash."""
    return f"/conformance/{next(_numbers)}"


@pytest.fixture
def connect(one_broker: BrokerProcess) -> Iterator[Connect]:
    """Connects strangers, each of a name of its own unless one is given, and closes them in the end."""
    with ExitStack() as strangers:

        def make(dialect: Dialect, broker: BrokerProcess = one_broker, name: str = "") -> Stranger:
            return strangers.enter_context(dialect.connect(broker, name or new_name()))

        yield make
