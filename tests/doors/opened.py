"""The doors in a broker of the test's own process, so that it can look into them."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from stafeta.broker import Broker
from stafeta.doors.devices.server import DevicesDoor
from stafeta.doors.flight.server import FlightDoor
from stafeta.doors.frames.server import FramesDoor
from stafeta.doors.http.server import HttpDoor
from stafeta.doors.zeromq.server import ZeroMQDoor

TIMEOUT: Final = 7.0


async def devices(broker: Broker) -> tuple[DevicesDoor, tuple[str, int]]:
    door = DevicesDoor(
        broker, buffer=1 << 16, receive_buffer=32 << 20, max_connections=100, peer_timeout=TIMEOUT
    )
    return door, await door.listen("127.0.0.1", 0)


async def frames(broker: Broker) -> tuple[FramesDoor, tuple[str, int]]:
    door = FramesDoor(broker, buffer=1 << 16, max_connections=100, peer_timeout=TIMEOUT)
    return door, await door.listen("127.0.0.1", 0)


async def zeromq(broker: Broker) -> tuple[ZeroMQDoor, str]:
    door = ZeroMQDoor(
        broker,
        max_frame=1 << 20,
        get_reply=1 << 16,
        max_backlog=1 << 20,
        max_connections=100,
        peer_timeout=TIMEOUT,
    )
    place = door.listen("127.0.0.1", 0)
    door.start()
    return door, place


async def flight(broker: Broker) -> tuple[FlightDoor, tuple[str, int]]:
    door = FlightDoor(broker, max_batch=1 << 20, max_streams=100)
    return door, await door.listen("127.0.0.1", 0)


async def http(broker: Broker) -> tuple[HttpDoor, tuple[str, int]]:
    door = HttpDoor(broker, buffer=1 << 16, max_connections=100, max_body=1 << 20, peer_timeout=TIMEOUT)
    return door, await door.listen("127.0.0.1", 0)


DOORS: Final[dict[str, Callable[[Broker], Awaitable[tuple[Any, Any]]]]] = {
    "devices": devices,
    "frames": frames,
    "zeromq": zeromq,
    "flight": flight,
    "http": http,
}
"""Each makes a door, and says where it listens."""
