"""What systemd is told: by a real socket, of a real broker."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.systemd import Service
from stafeta.testing import Broker
from stafeta.testing.broker import plain_environment
from tests.waiting import PATIENCE


class Manager:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(address.replace("@", "\0"))
        self.address = address

    def heard(self) -> list[str]:
        """The lines of the next datagram."""
        return self._socket.recv(4096).decode().split("\n")

    def heard_but(self, *others: str) -> list[str]:
        """The same, of the next that does not begin with one of these."""
        while (lines := self.heard())[0] in others:
            pass
        return lines

    def silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify")
    one = Manager(name if request.param == "path" else f"@{name}")
    yield one
    one.close()


def test_a_service_is_told_of_by_a_datagram(manager: Manager) -> None:
    service = Service({"NOTIFY_SOCKET": manager.address})
    service.ready("open")
    assert manager.heard() == ["READY=1", "STATUS=open"]
    service.reloading()
    reloading, since = manager.heard()
    assert reloading == "RELOADING=1"
    assert int(since.removeprefix("MONOTONIC_USEC=")) > 0
    service.stopping()
    assert manager.heard()[0] == "STOPPING=1"


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"NOTIFY_SOCKET": "/nowhere/at/all"}],
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    Service(environment).ready("open")


def test_the_watchdog_is_told_only_while_the_store_answers(manager: Manager) -> None:
    async def work() -> None:
        answers = asyncio.Event()
        asked = asyncio.Event()

        async def check() -> None:
            asked.set()
            await answers.wait()

        service = Service({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000"})
        service.watch(check)
        await asked.wait()
        await asyncio.sleep(0.05)
        assert manager.silent(), "the store has not answered"
        answers.set()
        for _ in range(3):
            assert await asyncio.to_thread(manager.heard) == ["WATCHDOG=1"]
        service.stop_watching()

    asyncio.run(work())


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "many"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_who_is_not_watched_says_nothing(manager: Manager, environment: dict[str, str]) -> None:
    async def work() -> None:
        async def check() -> None:
            raise AssertionError("nobody wants to know")

        Service({"NOTIFY_SOCKET": manager.address, **environment}).watch(check)
        await asyncio.sleep(0.02)

    asyncio.run(work())
    assert manager.silent()


def test_a_broker_tells_of_its_life(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    # So seldom that what the socket holds is never so much that something else has no room.
    environment = {**plain_environment(), "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000"}
    with Broker(tmp_path / "data", doors=("zeromq",), environment=environment) as broker:
        assert manager.heard() == ["READY=1", "STATUS=open, with 0 topics and 0 clients"]
        assert manager.heard() == ["WATCHDOG=1"], "the store has answered"
        os.kill(broker.pid, signal.SIGHUP)
        assert manager.heard_but("WATCHDOG=1")[0] == "RELOADING=1"
        assert manager.heard_but("WATCHDOG=1")[0] == "READY=1"
        assert broker.stop() == 0
        assert manager.heard_but("WATCHDOG=1")[0] == "STOPPING=1"
    manager.close()
