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
from tests.conformance.encrypted import USER, encrypt
from tests.conformance.every import DOORS
from tests.conformance.values import Way

# Just what the tests do: they all have topics of their own below this, and devices those that they wait for.
ALLOWED = tuple(Rule.read(f"publish,consume {filter_}") for filter_ in ("/conformance/#", f"{PROBES}+"))
HOSTS = ("127.0.0.1", "::1") if IPV6 else ("127.0.0.1",)
_numbers = count(1)


_ENCRYPTED = ("test_delivery.py", "test_subscriptions.py")  # also without --soak, a part of them


_UNENCRYPTED = "test_bad_input.py"
_VALUES = "test_values.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With encrypted doors, most of it only with --soak: of each test one dialect a door. Bytes that nobody would write
    do not come as far as a dialect there: tests/doors/test_tls.py has them. What doors make of a value has nothing to
    do with users: there, one value of each dialect is enough without --soak, and of two dialects, that each of them is
    tried as both; every dialect with every other is tried without users."""
    items[:] = [item for item in items if item.path.name != _UNENCRYPTED or "[encrypted" not in item.name]
    tried: set[tuple[str, str, int, str]] = set()
    for item in items:
        callspec = getattr(item, "callspec", None)
        broker = callspec.params.get("one_broker") if callspec else None
        if callspec is None or broker not in ("users", "encrypted"):
            continue
        dialects = [
            one.dialect if isinstance(one, Way) else one
            for one in callspec.params.values()
            if isinstance(one, Dialect | Way)
        ]
        test = item.name.partition("[")[0]
        roles = {(broker, test, place, str(one)) for place, one in enumerate(dialects)}
        known = roles <= tried
        tried |= roles
        if broker == "users":
            left_out = known and (item.path.name == _VALUES or len(dialects) == 2)
        else:
            left_out = known or len(dialects) != 1 or item.path.name not in _ENCRYPTED
        if left_out:
            item.add_marker("soak")


@pytest.fixture(scope="session", params=["anyone", "users", "encrypted"])
def one_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """The broker of all tests that do it no harm, with every door open, on IPv4 and on IPv6: one without users, one
    whose users may do just what the tests do, and one that has TLS and CURVE as well, and lets nobody in without a
    certificate or a key. Datagrams have neither: they are the door's own user's."""
    data = tmp_path_factory.mktemp("conformance") / "data"
    options = ["--set", "durability=os", "--set", "log_level=debug"]
    if request.param == "users":
        users = data.with_name("users.toml")
        stranger = User(allow=ALLOWED)
        save(users, Users({"stranger": stranger}, doors=dict.fromkeys(("zeromq", *DOORS), "stranger")))
        options += ["--users", str(users)]
    elif request.param == "encrypted":
        users = data.with_name("users.toml")
        more, key = encrypt(data, DOORS)
        stranger = User(allow=ALLOWED, curve_keys=(key,))
        save(users, Users({USER: stranger}, doors={"devices": USER}))
        options += ["--users", str(users), *more]
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
