"""Attacks by number on a real broker: connections that say nothing or one byte a second, and passwords that are tried.
Others are served meanwhile, and afterwards everything is as before. With --soak the numbers are those of
docs/security.md, and what comes of it is printed (-s)."""

import asyncio
import resource
import socket
import statistics
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from stafeta.errors import NotAuthenticated
from stafeta.security import Security, Token, User, Users
from stafeta.security.attempts import BY_ADDRESS
from stafeta.security.passwords import hash_password
from stafeta.security.rules import Rule
from stafeta.security.users import hash_token, now, save
from tests.brokers import BrokerProcess
from tests.security.test_doors import Asking, Caller
from tests.waiting import PATIENCE, wait_until

DOORS = ("zeromq", "devices", "frames", "flight")
SAID = {
    "zeromq": b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL",
    "devices": b"id9ABCDEFGHI",
    "frames": b'\0\0\x1a{"command": "listTopics" }',
    "flight": b"PRI * HTTP/2.0\r\n\r\nSM",
}
GUEST = User(hash_password("correct horse"), allow=(Rule.read("all #"),))
IDENTIFY = 1.5  # seconds


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("attacked")
    users = Users(
        {"ann": GUEST},
        tokens={"ann": Token("ann", hash_token("ann"), now())},
        doors=dict.fromkeys(DOORS[:3], "ann"),
    )
    save(folder / "users.toml", users)
    options = ("--users", str(folder / "users.toml"), "--set", "durability=os")
    limits = ("--set", f"limits.identify_timeout={IDENTIFY:g}s")
    with BrokerProcess(folder / "data", *options, *limits, doors=DOORS[1:]) as process:
        yield process
        assert "Traceback" not in process.stderr


class Bystander:
    """Publishes and asks, one after the other, by two doors, and notes how long each takes."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.times: list[float] = []
        self.failed: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        wait_until(lambda: len(self.times) > 3 or self.failed)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.failed is None

    def _go(self) -> None:
        try:
            with Asking(self._broker) as client, Caller(self._broker, "Bearer ann") as caller:
                client.ask("SUB", "bystander")
                while not self._over.is_set():
                    began = time.monotonic()
                    assert not client.ask("PUT", "bystander", publication="x")["refused"]
                    assert caller.act("topics", filter="bystander")
                    self.times.append(time.monotonic() - began)
                    time.sleep(0.01)
        except Exception as error:  # noqa: BLE001 - it is raised where the test ends
            self.failed = error


@contextmanager
def connections(place: tuple[str, int], number: int) -> Iterator[list[socket.socket]]:
    """Many of them, of which the last may not be accepted yet."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    try:
        held.extend(socket.create_connection(place, PATIENCE) for _ in range(number))
        yield held
    finally:
        for one in held:
            one.close()


def is_ended(peer: socket.socket) -> bool:
    try:
        while peer.recv(65536, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("number", [100, pytest.param(10_000, marks=pytest.mark.soak)])
def test_half_open_connections_are_ended_and_others_are_served(
    broker: BrokerProcess, door: str, number: int
) -> None:
    """Half of them say nothing, the others a byte now and then."""
    process = psutil.Process(broker.pid)
    before = process.num_fds()
    with Bystander(broker) as bystander:
        usual = list(bystander.times)
        began = time.monotonic()
        with connections(broker.door(door), number) as held:
            came = time.monotonic() - began
            most = process.memory_info().rss

            bytes_ = iter(SAID[door])
            next_byte = began

            def drip() -> bool:
                nonlocal next_byte
                if time.monotonic() >= next_byte and (byte := next(bytes_, None)) is not None:
                    next_byte = time.monotonic() + 0.4
                    for one in held[::2]:
                        with suppress(OSError):
                            one.send(bytes([byte]), socket.MSG_DONTWAIT)
                return all(map(is_ended, held))

            wait_until(drip)
            ended = time.monotonic() - began
        during = bystander.times[len(usual) :]
        wait_until(lambda: process.num_fds() <= before + 20)
        assert during
        assert max(during) < 30, "others have waited"
    print(
        f"\n{door}, {number:,} half-open connections: there after {came:.1f} s, ended after {ended:.1f} s;"
        f" {most / 1e6:.0f} MB; a publish and a list of others: median {1000 * statistics.median(during):.1f} ms, "
        f"longest {1000 * max(during):.0f} ms"
    )


@pytest.mark.parametrize("number", [500, pytest.param(50_000, marks=pytest.mark.soak)])
def test_a_password_is_tried_at_the_flight_door_and_others_are_served(
    broker: BrokerProcess, number: int
) -> None:
    said: list[str] = []

    def guess(first: int) -> None:
        for one in range(first, number, 4):
            word = b64encode(f"ann:guess {one}".encode()).decode()
            with Caller(broker, f"Basic {word}") as stranger:
                try:
                    stranger.act("topics")
                except Exception as error:  # noqa: BLE001 - what was said is counted
                    said.append(str(error))

    with Bystander(broker) as bystander:
        usual = len(bystander.times)
        began = time.monotonic()
        threads = [threading.Thread(target=guess, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        during = bystander.times[usual:]
    heard = sum("the password is wrong" in sentence for sentence in said)
    assert len(said) == number
    assert heard <= BY_ADDRESS * (1 + took // 60 + 1)
    assert sum("Too many attempts" in sentence for sentence in said) >= number - heard
    print(
        f"\n{number:,} passwords at the Flight door in {took:.0f} s: {heard} heard; others: "
        f"median {1000 * statistics.median(during):.1f} ms, longest {1000 * max(during):.0f} ms"
    )


@pytest.mark.soak
def test_a_million_passwords() -> None:
    """Of one user, from one address and from ten thousand."""

    async def tried(security: Security, address: Callable[[int], str]) -> tuple[int, float]:
        heard = 0
        began = time.monotonic()
        for number in range(1_000_000):
            try:
                await security.authenticate(
                    door="flight", address=address(number), password=("ann", f"guess {number}")
                )
                raise AssertionError("it came in")
            except NotAuthenticated as error:
                heard += "unknown" in str(error)
        return heard, time.monotonic() - began

    async def work() -> None:
        for name, address in (
            ("one address", lambda number: f"10.0.0.1:{number % 60_000}"),
            ("10,000 addresses", lambda number: f"10.1.{number % 10_000 // 256}.{number % 256}:1"),
        ):
            security = Security(Users({"ann": GUEST}))
            heard, took = await tried(security, address)
            print(f"\na million passwords from {name}: {heard} heard, in {took:.0f} s")
            assert heard <= 50 * (1 + took // 60 + 1)
            security.close()

    asyncio.run(work())
