"""Connections that vanish, and what is left in a broker of those that are gone, at every door."""

import asyncio
import gc
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
import zmq
from websockets.sync.client import connect

import stafeta
from stafeta.broker import Broker
from stafeta.doors.connection import KEEPALIVE
from stafeta.testing.memory import MemoryStore
from tests.doors.devices.subscribers import Publisher, Subscriber
from tests.doors.frames.peers import Peer as Frames
from tests.doors.http.peers import Events
from tests.doors.http.peers import Peer as Http
from tests.doors.opened import DOORS, TIMEOUT
from tests.doors.zeromq.peers import Peer as ZeroMQ
from tests.waiting import PATIENCE

MANY = 20
GRPC = 20.0  # seconds, which is its own choice


@pytest.fixture
def no_cycles_looked_for() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_cycles_looked_for")
@pytest.mark.parametrize("kind", ["devices", "frames", "zeromq", "flight", "http"])
def test_nothing_is_left_of_a_connection_and_no_collection_is_needed_for_it(kind: str) -> None:
    """A broker lets collections pass over what is old, so what needs one would stay for ever."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_use_and_count(kind))


async def _use_and_count(kind: str) -> None:
    broker = await Broker.open(MemoryStore())
    door, place = await DOORS[kind](broker)
    use = _USES[kind]
    try:
        await asyncio.to_thread(use, place, 1)  # what is made once
        before = _alive()
        await asyncio.to_thread(use, place, MANY)
        for _ in range(round(PATIENCE / 0.1)):  # that they are gone is noticed in a while
            await asyncio.sleep(0.1)
            await asyncio.shield(broker.commit())
            left = {name: count for name, count in _alive().items() if count - before[name] >= MANY // 2}
            if not left:
                break
        assert not left
    finally:
        await door.close()
        await broker.close()


def _alive() -> Counter[str]:
    """What there is of doors, their connections, and what they read from."""
    kinds = Counter(map(type, gc.get_objects()))
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith(
                ("stafeta.doors.", "stafeta.broker.consumer", "uvloop", "uvicorn")
            )
            and "client" not in kind.__module__
        }
    )


def _use_devices(place: tuple[str, int], count: int) -> None:
    with Publisher(place) as publisher:
        for number in range(count):
            with Subscriber(place, f"C{number}") as one:
                one.subscribe("t", number % 2)
                one.settled(publisher)
                publisher.send("t", 3, b"x")
                one.receive(1)
                one.unsubscribe("t")


def _use_frames(place: tuple[str, int], count: int) -> None:
    for _ in range(count):
        with Frames(place) as one:
            one.subscribe("t")
            one.publish("t", "x")
            assert one.hear()["message"] == "x"


def _use_zeromq(place: str, count: int) -> None:
    for number in range(count):
        with ZeroMQ(place, zmq.DEALER) as one:
            for request in ("SUB {0} t", "PUT t x", "GET {0} t", "UNSUB {0} t"):
                one.ask(request.format(f"c{number}"))


def _use_flight(place: tuple[str, int], count: int) -> None:
    host, port = place
    for number in range(count):
        name = f"n{number}"
        with stafeta.connect(f"grpc://{host}:{port}") as one:
            with one.subscribe("t", name=name) as named, one.subscribe("t", start="earliest") as live:
                one.publish("t", ["x"])
                next(named).ack()
                assert len(next(live)) > 0
                one.read("t")
            one.unsubscribe("t", name=name)


def _use_http(place: tuple[str, int], count: int) -> None:
    for number in range(count):
        with Http(place) as one:
            one.post("/api/subscriptions", {"client": f"n{number}", "filter": "t"})
            with Events(place, filter="t") as live, Events(place, client=f"n{number}", ack="auto") as named:
                one.publish("t", "x")
                assert live.texts(1) == named.texts(1) == ["x"]
            address = f"ws://{place[0]}:{place[1]}/api/socket?filter=t"
            with connect(address, open_timeout=PATIENCE) as socket_:
                one.publish("t", "y")
                assert '"y"' in str(socket_.recv(PATIENCE))
            assert one.ask("GET", "/nothing").status == 404
            assert one.ask("DELETE", "/api/subscriptions", client=f"n{number}", filter="t").status == 200


_USES: dict[str, Callable[[Any, int], None]] = {
    "devices": _use_devices,
    "frames": _use_frames,
    "zeromq": _use_zeromq,
    "flight": _use_flight,
    "http": _use_http,
}


@pytest.mark.parametrize("kind", ["devices", "frames", "zeromq", "flight", "http"])
def test_a_peer_that_vanishes_is_noticed_whether_something_is_on_its_way_or_not(kind: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_look_at_sockets(kind))


async def _look_at_sockets(kind: str) -> None:
    broker = await Broker.open(MemoryStore())
    door, place = await DOORS[kind](broker)
    port = int(place.rpartition(":")[2]) if isinstance(place, str) else place[1]
    try:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for _ in range(round(PATIENCE / 0.1)):
                if (found := _accepted(port, peer.getsockname()[1])) is not None:
                    break
                await asyncio.sleep(0.1)
            assert found is not None
            with found:
                patience = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert patience == 1000 * (GRPC if kind == "flight" else TIMEOUT)
                if kind != "flight":  # gRPC asks by its own means
                    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    assert (
                        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE["TCP_KEEPIDLE"]
                    )
    finally:
        await door.close()
        await broker.close()


def _accepted(port: int, peer: int) -> socket.socket | None:
    """A copy of the broker's end of a connection."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not os.readlink(link).startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(link.name)))
            with suppress(OSError):
                inet = one.family in (socket.AF_INET, socket.AF_INET6)
                if inet and one.getsockname()[1] == port and one.getpeername()[1] == peer:
                    return one
            one.close()
    return None
