"""What strangers may take of a door by coming to it: so many connections, and so much time to say something."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stafeta.broker import Broker, Limits
from stafeta.testing.memory import MemoryStore
from tests.doors.opened import devices, frames, zeromq
from tests.waiting import PATIENCE

Opening = Callable[[Broker], Awaitable[tuple[Any, Any]]]
FRAME = b'\0\0\x1a{"command": "listTopics" }'
SAID = {"devices": b"id2C1", "frames": FRAME}
PUSHING = pytest.mark.parametrize("opening", [devices, frames], ids=["devices", "frames"])


def work(limits: Limits, opening: Opening, doing: Callable[[Broker, str, int], Awaitable[None]]) -> None:
    async def life() -> None:
        broker = await Broker.open(MemoryStore(), limits)
        door, place = await opening(broker)
        host, port = place if not isinstance(place, str) else place.removeprefix("tcp://").split(":")
        async with asyncio.timeout(PATIENCE):
            await doing(broker, host, int(port))
        await door.close()
        await broker.close()

    asyncio.run(life())


async def ended(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1000):
            pass
    except ConnectionResetError:
        pass


@PUSHING
@pytest.mark.parametrize("said", ["nothing", "a byte"])
def test_a_connection_that_says_nothing_is_ended(
    opening: Opening, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def doing(broker: Broker, host: str, port: int) -> None:
        connections = [await asyncio.open_connection(host, port) for _ in range(20)]
        for _, writer in connections:
            writer.write(SAID[opening.__name__][:1] if said == "a byte" else b"")
        await asyncio.gather(*(ended(reader) for reader, _ in connections))
        for _, writer in connections:
            writer.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(identify_timeout=0.05), opening, doing)
    assert caplog.text.count("limits.identify_timeout") == 1  # for all of them


@PUSHING
def test_a_connection_that_has_said_something_stays_and_is_ended_when_it_is_silent_for_long(
    opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it subscribes to something: a device's connection always may."""

    async def doing(broker: Broker, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(SAID[opening.__name__])
        if opening is frames:
            await ended(reader)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.5)
        writer.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(idle_timeout=0.1), opening, doing)
    assert ("limits.idle_timeout" in caplog.text) is (opening is frames)


@pytest.mark.parametrize("opening", [devices, frames, zeromq], ids=["devices", "frames", "zeromq"])
def test_an_address_has_so_many_connections(opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    async def doing(broker: Broker, host: str, port: int) -> None:
        first = [await asyncio.open_connection(host, port) for _ in range(3)]
        for number, (_, writer) in enumerate(first, 1):
            writer.write(SAID.get(opening.__name__, b"").replace(b"C1", b"C%d" % number))
        more = [await asyncio.open_connection(host, port) for _ in range(20)]
        await asyncio.gather(*(ended(reader) for reader, _ in more))
        # Those that were there stay, and one that goes makes room.
        for reader, _ in first:
            assert not reader.at_eof()
        for _, writer in (*first, *more):
            writer.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(max_address_connections=3), opening, doing)
    assert caplog.text.count("limits.max_address_connections") == 1
