"""A client that asks for more in a second than it may is told so, or is read from more slowly, as its protocol has it;
nothing that was taken from it is lost."""

import asyncio
import json
import logging
import socket as sockets
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pyarrow as pa
import pytest
import zmq
import zmq.asyncio
from pyarrow import flight as arrow

from stafeta.broker import Broker, Limits
from stafeta.security import Security, User, Users
from stafeta.security.rules import Rule
from stafeta.testing.memory import MemoryStore
from tests.doors.http.peers import Answer, Peer, messages_of
from tests.doors.opened import DOORS
from tests.waiting import PATIENCE, comes_true

GUEST = User(allow=(Rule.read("all #"),))
USERS = Users({"guest": GUEST, "other": GUEST}, doors=dict.fromkeys(DOORS, "guest"))
SLOWED = "a client is slowed down"


def work(door: str, limits: Limits, doing: Callable[[Broker, Any, str, int], Awaitable[None]]) -> None:
    async def life() -> None:
        broker = await Broker.open(MemoryStore(), limits, security=Security(USERS))
        opened, place = await DOORS[door](broker)
        host, port = place if not isinstance(place, str) else place.removeprefix("tcp://").split(":")
        async with asyncio.timeout(PATIENCE):
            await doing(broker, opened, host, int(port))
        await opened.close()
        await broker.close()

    asyncio.run(life())


def test_at_the_zeromq_door_it_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def doing(broker: Broker, door: Any, host: str, port: int) -> None:
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(f"tcp://{host}:{port}")
        broker.subscribe("keeps", "t")
        asked = orjson.dumps({"type": "PUT", "topic": "t", "body": {"publication": "x"}})
        began = asyncio.get_running_loop().time()
        for _ in range(500):
            await socket.send_multipart([b"", asked])
        answers = [orjson.loads((await socket.recv_multipart())[1]) for _ in range(500)]
        stored = sum(answer["type"] == "ACK" for answer in answers)
        passed = asyncio.get_running_loop().time() - began
        assert 20 <= stored <= 20 * (passed + 1) + 1
        assert broker.topic("t").next == stored + 1
        refused = [answer["body"] for answer in answers if answer["type"] == "NAK"]
        assert refused
        assert all(
            body["retry"] and "limits.max_client_requests" in body["error_message"] for body in refused
        )
        broker.for_principal(USERS_OTHER).publish("t", b"others are not disturbed")
        answer: dict[str, Any] = {}
        while answer.get("type") != "ACK":  # later it may
            await socket.send_multipart([b"", asked])
            answer = orjson.loads((await socket.recv_multipart())[1])
        socket.close()

    with caplog.at_level(logging.WARNING):
        work("zeromq", Limits(max_client_requests=20), doing)
    assert 1 <= caplog.text.count(SLOWED) <= 10


USERS_OTHER = Security(USERS).identify(door="zeromq", address="10.0.0.1:1")


def test_at_the_frames_door_it_is_read_more_slowly(caplog: pytest.LogCaptureFixture) -> None:
    async def doing(broker: Broker, door: Any, host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        body = b'{"command": "publish", "topic": "t", "message": "x"}'
        began = asyncio.get_running_loop().time()
        writer.write((bytes([0]) + len(body).to_bytes(2, "big") + body) * 1500)
        await comes_true(lambda: "t" in broker.topics and broker.topic("t").next > 1500)
        assert asyncio.get_running_loop().time() - began > 0.2
        writer.close()

    with caplog.at_level(logging.WARNING):
        work("frames", Limits(max_client_requests=500), doing)  # which a busy machine exceeds as well
    assert SLOWED in caplog.text


def test_a_devices_commands_are_read_more_slowly() -> None:
    async def doing(broker: Broker, door: Any, host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        began = asyncio.get_running_loop().time()
        writer.write(b"id2C1" + b"".join(b"ss4!1t/%02d" % number for number in range(30)))
        client = "users/guest/devices/C1"
        await comes_true(lambda: len(broker.clients.get(client, {})) == 30)
        writer.write(b"ss4!1last")
        await comes_true(lambda: len(broker.clients.get(client, {})) == 31)
        assert asyncio.get_running_loop().time() - began > 0.4
        writer.close()

    work("devices", Limits(max_client_requests=20), doing)


def test_datagrams_that_are_too_many_are_left_out_and_counted() -> None:
    async def doing(broker: Broker, door: Any, host: str, port: int) -> None:
        broker.subscribe("keeps", "t")
        with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as sensor:
            while not door.counts.refused:
                sensor.sendto(b"t".ljust(50, b"\0") + b"\3" + b"x" * 400, (host, port))
                await asyncio.sleep(0.001)
        assert broker.topic("t").next > 1

    work("devices", Limits(max_client_bytes=1024), doing)


def test_at_the_flight_door_calls_are_refused_and_batches_are_left_with_the_client() -> None:
    async def doing(broker: Broker, door: Any, host: str, port: int) -> None:
        client = arrow.FlightClient(f"grpc://{host}:{port}")

        def call() -> str:
            try:
                while True:
                    list(client.do_action(arrow.Action("stats", b"")))
            except arrow.FlightUnavailableError as error:
                return str(error)

        assert "limits.max_client_requests" in await asyncio.to_thread(call)
        client.close()

    work("flight", Limits(max_client_requests=20), doing)

    async def putting(broker: Broker, door: Any, host: str, port: int) -> None:
        broker.subscribe("keeps", "t")
        client = arrow.FlightClient(f"grpc://{host}:{port}")
        batch = pa.record_batch({"payload": pa.array([b"x" * 1000] * 100, pa.binary())})

        def put() -> None:
            reader: Any
            writer, reader = client.do_put(arrow.FlightDescriptor.for_path("t"), batch.schema)
            for _ in range(15):
                writer.write_batch(batch)
            writer.done_writing()
            answers = 0
            while (answer := reader.read()) is not None:
                assert "offset" in json.loads(answer.to_pybytes())
                answers += 1
            assert answers == 15
            writer.close()

        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(put)
        assert asyncio.get_running_loop().time() - began > 0.3
        assert broker.topic("t").next == 1501
        client.close()

    work("flight", Limits(max_client_bytes=1 << 20), putting)


def test_at_the_http_door_requests_are_refused_and_bodies_are_read_more_slowly() -> None:
    async def asking(broker: Broker, door: Any, host: str, port: int) -> None:
        def ask() -> Answer:
            with Peer((host, port)) as peer:
                while (answer := peer.ask("GET", "/api/stats")).status == 200:
                    pass
                return answer

        refused = await asyncio.to_thread(ask)
        assert refused.status == 429
        assert "limits.max_client_requests" in refused.json["detail"]

    work("http", Limits(max_client_requests=20), asking)

    async def putting(broker: Broker, door: Any, host: str, port: int) -> None:
        broker.subscribe("keeps", "t")

        def put() -> None:
            with Peer((host, port)) as peer:
                for _ in range(3):
                    answer = peer.ask("POST", messages_of("t"), b"x" * (1 << 19))
                    assert answer.status == 201, answer

        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(put)
        assert asyncio.get_running_loop().time() - began > 0.3
        assert broker.topic("t").next == 4

    work("http", Limits(max_client_bytes=1 << 20), putting)


def test_a_user_has_so_many_flight_streams() -> None:
    async def life() -> None:
        from stafeta.doors.flight.server import FlightDoor

        broker = await Broker.open(MemoryStore(), security=Security(USERS))
        door = FlightDoor(broker, max_batch=1 << 20, max_streams=10, max_user_streams=2)
        host, port = await door.listen("127.0.0.1", 0)
        client = arrow.FlightClient(f"grpc://{host}:{port}")
        follow = arrow.Ticket(b'{"topic": "t", "follow": true}')
        streams = [await asyncio.to_thread(client.do_get, follow) for _ in range(2)]
        with pytest.raises(arrow.FlightUnavailableError, match="max_user_streams"):
            await asyncio.to_thread(client.do_get, follow)
        door.enter("other")
        door.leave("other")
        for stream in streams:
            await asyncio.to_thread(stream.cancel)
        await comes_true(lambda: not door.streams)
        stream = await asyncio.to_thread(client.do_get, follow)
        await asyncio.to_thread(stream.cancel)
        client.close()
        await door.close()
        await broker.close()

    asyncio.run(life())
