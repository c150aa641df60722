from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
import zmq

from stafeta import Client
from tests.brokers import BrokerProcess
from tests.doors.zeromq.blocking import KINDS_OF_CLIENT
from tests.doors.zeromq.peers import GET_REPLY, Peer

_numbers = count(1)


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all tests that do it no harm."""
    with BrokerProcess(tmp_path_factory.mktemp("lasting") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short GET replies that collects at once."""
    options = ("--set", f"zeromq.get_reply={GET_REPLY}", "--set", "store.sweep=20ms")
    with BrokerProcess(tmp_path_factory.mktemp("small") / "data", *options) as process:
        yield process


@pytest.fixture(params=[zmq.REQ, zmq.DEALER], ids=["REQ", "DEALER"])
def peer(request: pytest.FixtureRequest, small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address, request.param) as peer:
        yield peer


@pytest.fixture
def dealer(small: BrokerProcess) -> Iterator[Peer]:
    with Peer(small.address) as peer:
        yield peer


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"test/{next(_numbers)}"


@pytest.fixture(params=KINDS_OF_CLIENT)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients of either kind, with a folder in `tmp_path` if one is named, and closes them in the end."""
    with ExitStack() as clients:

        def make(address: str, folder: str | None = None, **options: float) -> Client:
            place = None if folder is None else tmp_path / folder
            return clients.enter_context(KINDS_OF_CLIENT[request.param](address, place, **options))

        yield make


@pytest.fixture
def client(connect: Callable[..., Client], lasting: BrokerProcess) -> Client:
    return connect(lasting.address)
