"""What strangers may take of a door by coming to it: so many connections, and so much time to say something."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zmq
import zmq.asyncio
from pyarrow.flight import Action, FlightClient, FlightUnavailableError, Ticket

from stafeta.broker import Broker, Limits
from stafeta.testing.memory import MemoryStore
from tests.doors.opened import DOORS, devices, flight, frames, zeromq
from tests.waiting import PATIENCE, comes_true

Opening = Callable[[Broker], Awaitable[tuple[Any, Any]]]
FRAME = b'\0\0\x1a{"command": "listTopics" }'
SAID = {
    "devices": b"id2C1",
    "frames": FRAME,
    "zeromq": b"\xff",
    "flight": b"PRI * HTTP/2.0\r\n",
    "http": b"GET / HTTP/1.1\r\n",
}
PUSHING = pytest.mark.parametrize("opening", [devices, frames], ids=["devices", "frames"])
EVERY = pytest.mark.parametrize("opening", list(DOORS.values()), ids=list(DOORS))


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


@EVERY
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
    # For all of them; at the HTTP door one for those who say nothing, and one for those who do not finish.
    assert 1 <= caplog.text.count("limits.identify_timeout") <= (2 if opening.__name__ == "http" else 1)


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


def test_a_zeromq_client_that_asks_for_nothing_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it has agreed on all that ZeroMQ has to agree on; when it asks, it connects again."""

    async def doing(broker: Broker, host: str, port: int) -> None:
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(f"tcp://{host}:{port}")
        await events.recv_multipart()
        socket.disable_monitor()
        events.close(0)
        await socket.send_multipart([b"", b"LOGIN"])
        assert (await socket.recv_multipart())[1].startswith(b"LOGIN:")
        socket.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(identify_timeout=0.2), zeromq, doing)
    assert "limits.identify_timeout" in caplog.text


@pytest.mark.parametrize("opening", [zeromq, flight], ids=["zeromq", "flight"])
def test_who_has_asked_and_is_silent_for_long_is_ended_and_comes_back(
    opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    async def doing(broker: Broker, host: str, port: int) -> None:
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(f"tcp://{host}:{port}")
        caller = FlightClient(f"grpc://{host}:{port}")

        async def ask() -> None:
            if opening is zeromq:
                await socket.send_multipart([b"", b"LOGIN"])
                assert (await socket.recv_multipart())[1].startswith(b"LOGIN:")
            else:
                assert await asyncio.to_thread(lambda: list(caller.do_action(Action("stats", b""))))

        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        await ask()
        await comes_true(lambda: "limits.idle_timeout" in caplog.text)
        if opening is zeromq:
            await events.recv_multipart()
        socket.disable_monitor()
        events.close(0)
        for last in (False, False, True):
            try:
                await ask()
                break
            except FlightUnavailableError:  # it was just being ended
                assert not last
        socket.close()
        caller.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(idle_timeout=0.2), opening, doing)


def test_a_flight_stream_that_waits_for_messages_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def doing(broker: Broker, host: str, port: int) -> None:
        caller = FlightClient(f"grpc://{host}:{port}")
        stream = await asyncio.to_thread(caller.do_get, Ticket(b'{"topic": "t", "follow": true}'))
        silent = await asyncio.open_connection(host, port)
        await ended(silent[0])  # so it was looked at
        broker.publish("t", b"still there")
        broker.commit()
        chunk: Any = await asyncio.to_thread(stream.read_chunk)
        assert chunk.data["payload"].to_pylist() == [b"still there"]
        silent[1].close()
        await asyncio.to_thread(stream.cancel)
        await asyncio.to_thread(caller.close)

    with caplog.at_level(logging.WARNING):
        work(Limits(idle_timeout=0.05, identify_timeout=0.05), flight, doing)


@EVERY
def test_an_address_has_so_many_connections(opening: Opening, caplog: pytest.LogCaptureFixture) -> None:
    async def doing(broker: Broker, host: str, port: int) -> None:
        first = [await asyncio.open_connection(host, port) for _ in range(3)]
        for number, (_, writer) in enumerate(first, 1):
            if opening in (devices, frames):
                writer.write(SAID[opening.__name__].replace(b"C1", b"C%d" % number))
        more = [await asyncio.open_connection(host, port) for _ in range(20)]
        if opening is flight:  # which looks now and then: of those that came since, some stay
            every = [reader for reader, _ in (*first, *more)]
            endings = [asyncio.ensure_future(ended(reader)) for reader in every]
            await comes_true(lambda: sum(one.done() for one in endings) == 20)
        else:
            await asyncio.gather(*(ended(reader) for reader, _ in more))
            # Those that were there stay, and one that goes makes room.
            for reader, _ in first:
                assert not reader.at_eof()
        for _, writer in (*first, *more):
            writer.close()

    with caplog.at_level(logging.WARNING):
        work(Limits(max_address_connections=3), opening, doing)
    assert caplog.text.count("limits.max_address_connections") == 1
