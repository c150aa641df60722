"""A disk or a socket that does not work for a while: nothing comes again, and what is lost is counted."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from stafeta.broker import Broker, commits
from stafeta.doors.devices import receiver
from stafeta.doors.devices.server import DevicesDoor
from stafeta.errors import StoreFull
from stafeta.store.port import Group
from tests.broker.stores import FailingMemory
from tests.doors.devices.subscribers import Publisher, Subscriber
from tests.waiting import PATIENCE


class Disk(FailingMemory):
    no_cursors = False

    async def commit(self, group: Group) -> None:
        if self.no_cursors and group.cursors:
            raise StoreFull("No room is left.")
        await super().commit(group)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_INTERVAL", 0.05)


def with_door(work: "Callable[[Disk, Broker, DevicesDoor, tuple[str, int]], Awaitable[None]]") -> None:
    async def run() -> None:
        store = Disk()
        broker = await Broker.open(store)
        door = DevicesDoor(
            broker, buffer=1 << 16, receive_buffer=1 << 20, max_connections=10, peer_timeout=60.0
        )
        try:
            await work(store, broker, door, await door.listen("127.0.0.1", 0))
        finally:
            store.fails = store.no_cursors = False
            await door.close()
            await broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_what_a_device_has_got_is_acknowledged_when_the_disk_has_room_again(*, leaves: bool) -> None:
    async def work(store: Disk, broker: Broker, door: DevicesDoor, place: tuple[str, int]) -> None:
        def deliver() -> None:
            device.subscribe("t", 1)
            device.settled(publisher)
            store.no_cursors = True
            sent = publisher.send("t", 3, b"x")
            assert device.receive(1) == [sent]

        with Publisher(place) as publisher, Subscriber(place, "C1") as device:
            await asyncio.to_thread(deliver)
            await until(lambda: broker.commits.failures > 2)
            if leaves:
                device.close()
                await until(lambda: not door.connections.all)
            store.no_cursors = False
            (subscription,) = [one for one in broker.topics["t"].subscribers if one.filter == "t"]
            await until(lambda: subscription.cursors[broker.topics["t"]].floor == broker.topics["t"].next)
            await asyncio.shield(broker.commit())
            assert broker.commits.failures < 20, "it is not done again all the time"

    with_door(work)


def test_readings_that_could_not_be_stored_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stafeta")

    async def work(store: Disk, broker: Broker, door: DevicesDoor, place: tuple[str, int]) -> None:
        broker.registry.topic_for("t", create=True)
        await asyncio.shield(broker.commit())
        store.fails = True
        with Publisher(place) as publisher:
            for _ in range(5):
                publisher.send("t", 3, b"x")
            await until(lambda: door.counts.unstored == 5)
            store.fails = False
            await asyncio.shield(broker.commit())  # an empty group is no sign that messages are stored
            assert "stored again" not in caplog.text
            await asyncio.sleep(0.1)
            publisher.send("t", 3, b"y")
            await until(lambda: "stored again" in caplog.text)
        assert door.counts.unstored == 5

    with_door(work)
    assert "datagrams were dropped" in caplog.text


def test_an_error_of_the_system_at_receiving_passes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiver, "RETRY_INTERVAL", 0.05)
    errors = [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) for _ in range(2)]
    several = receiver._several

    def failing(udp: socket.socket) -> Iterator[Any]:
        if errors:
            raise errors.pop()
        return several(udp)

    monkeypatch.setattr(receiver, "_several", failing)

    async def work(_: Disk, broker: Broker, door: DevicesDoor, place: tuple[str, int]) -> None:
        broker.registry.topic_for("t", create=True)
        await asyncio.shield(broker.commit())
        with Publisher(place) as publisher:
            publisher.send("t", 3, b"x")
            await until(lambda: broker.topics["t"].visible == 2)
        assert door.counts.lost == 0

    with_door(work)
    assert caplog.text.count("Cannot allocate memory; tried again in 0.05 s") == 2
