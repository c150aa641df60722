from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from zlib import crc32

import pytest

from stafeta.security import User, Users
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import IPV6, BrokerProcess, Doors
from tests.conformance.devices import PROBES
from tests.conformance.dialects import Connect, Dialect, Stranger, new_name
from tests.conformance.every import DOORS

# Just what the tests do: they all have topics of their own below this, and devices those that they wait for.
ALLOWED = tuple(Rule.read(f"publish,consume {filter_}") for filter_ in ("/conformance/#", f"{PROBES}+"))
HOSTS = ("127.0.0.1", "::1") if IPV6 else ("127.0.0.1",)
_numbers = count(1)


@pytest.fixture(scope="session", params=["anyone", "users"])
def one_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """The broker of all tests that do it no harm, with every door open, on IPv4 and on IPv6: one without users, and one
    whose users may do just what the tests do."""
    data = tmp_path_factory.mktemp("conformance") / "data"
    options = ["--set", "durability=os", "--set", "log_level=debug"]
    if request.param == "users":
        users = data.with_name("users.toml")
        stranger = User(allow=ALLOWED)
        save(users, Users({"stranger": stranger}, doors=dict.fromkeys(("zeromq", *DOORS), "stranger")))
        options += ["--users", str(users)]
    with BrokerProcess(data, *options, doors=DOORS, hosts=HOSTS) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses. People who use frames begin them with a slash."""
    return f"/conformance/{next(_numbers)}"


@pytest.fixture
def connect(request: pytest.FixtureRequest, one_broker: BrokerProcess) -> Iterator[Connect]:
    """Connects strangers, each of a name of its own unless one is given, and closes them in the end. They come by IPv4
    and by IPv6 in turn; who is the first depends on the name of the test, so that each dialect is tried with both."""
    turns = count(crc32(request.node.nodeid.encode()))
    with ExitStack() as strangers:

        def make(dialect: Dialect, broker: Doors | None = None, name: str = "") -> Stranger:
            broker = broker or one_broker.at(HOSTS[next(turns) % len(HOSTS)])
            return strangers.enter_context(dialect.connect(broker, name or new_name()))

        yield make
