"""NATS JetStream with nats-py."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from benchmarks.load import LoadFailed
from benchmarks.peer import (
    CLIENT,
    MEMORY,
    PATIENCE,
    TOPIC,
    Peer,
    Timed,
    age,
    expect,
    has_module,
    messages,
    paced,
)
from benchmarks.peer_server import find, running, said_version

AHEAD = 4000  # messages that are not acknowledged yet: what publish_async has by default
ACKED = 1000  # messages that one acknowledgement stands for
UNACKED = 20_000  # messages that the server sends ahead of acknowledgements
_UNLIMITED = {"pending_msgs_limit": -1, "pending_bytes_limit": -1}  # of what waits in the client


class Nats(Peer, Timed):
    """A stream with a durable push consumer, the quickest kind from Python.

    `by_hand`: publishes as the client's library does below publish_async, with one subscription to all
    acknowledgements that only counts them and looks for errors.
    """

    system = "NATS JetStream"
    consuming = f"push consumer, one ack for {ACKED:,}"
    timing = "publish; push consumer"

    def __init__(self, *, durable: bool, by_hand: bool = False) -> None:
        self.durable = durable
        self.by_hand = by_hand
        self.settings = f"{'file' if durable else 'memory'} storage"
        self.publishing = "publish, acks counted by hand" if by_hand else "publish_async"
        self.promise = "with the system; fsync every 2 minutes" if durable else MEMORY
        self.remembers = "in memory; in a file later" if durable else MEMORY

    def version(self) -> str | None:
        path = find("nats-server")
        return said_version(path, "--version") if path and has_module("nats") else None

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        path = find("nats-server")
        assert path is not None

        def command(port: int) -> list[str]:
            options = {"addr": "127.0.0.1", "port": str(port), "store_dir": str(folder)}
            return [
                path,
                "--jetstream",
                *(word for name, value in options.items() for word in (f"--{name}", value)),
            ]

        with running(folder, command) as port:
            yield f"nats://127.0.0.1:{port}"

    def prepare(self, address: str) -> None:
        uvloop.run(self._prepare(address))

    async def _prepare(self, address: str) -> None:
        from nats.js import api

        storage = api.StorageType.FILE if self.durable else api.StorageType.MEMORY
        async with _connected(address) as (_, stream):
            await stream.add_stream(name=TOPIC, subjects=[TOPIC], storage=storage)

    def publish(self, address: str, total: int) -> float:
        return uvloop.run((self._publish_by_hand if self.by_hand else self._publish)(address, total))

    async def _publish(self, address: str, total: int) -> float:
        async with _connected(address) as (_, stream):
            start = perf_counter()
            for payload in messages(total):
                await stream.publish_async(TOPIC, payload)
            await stream.publish_async_completed()
            took = perf_counter() - start
            await self._check(stream, total)
            return took

    async def _publish_by_hand(self, address: str, total: int) -> float:
        async with _connected(address) as (client, stream):
            sent = answered = 0
            refusals: list[bytes] = []
            room = asyncio.Event()

            async def answer(message: Any) -> None:
                nonlocal answered
                if b'"error"' in message.data or not message.data:
                    refusals.append(message.data)
                answered += 1
                if sent - answered <= AHEAD // 2:
                    room.set()

            inbox = client.new_inbox()
            await client.subscribe(inbox, cb=answer, **_UNLIMITED)
            await client.flush()
            start = perf_counter()
            for payload in messages(total):
                if sent - answered >= AHEAD:
                    room.clear()
                    await asyncio.wait_for(room.wait(), PATIENCE)
                sent += 1
                await client.publish(TOPIC, payload, reply=inbox)
            while answered < total:
                room.clear()
                await asyncio.wait_for(room.wait(), PATIENCE)
            took = perf_counter() - start
            if refusals:
                raise LoadFailed(f"{self.system} answered {refusals[0]!r}.")
            await self._check(stream, total)
            return took

    async def _check(self, stream: Any, total: int) -> None:
        expect(total, (await stream.stream_info(TOPIC)).state.messages, self.system)

    def consume(self, address: str, total: int) -> float:
        return uvloop.run(self._consume(address, total))

    async def _consume(self, address: str, total: int) -> float:
        async with _connected(address) as (_, stream):
            start = perf_counter()
            await self._subscribed(stream, total, lambda _: None)
            took = perf_counter() - start
            left = await stream.consumer_info(TOPIC, CLIENT)
            expect(0, left.num_pending + left.num_ack_pending, self.system)
            return took

    async def _subscribed(self, stream: Any, total: int, look: Callable[[bytes], object]) -> None:
        from nats.js import api

        got = 0
        done = asyncio.Event()

        async def take(message: Any) -> None:
            nonlocal got
            look(message.data)
            got += 1
            if got == total:
                await message.ack_sync(timeout=PATIENCE)
                done.set()
            elif got % ACKED == 0:
                await message.ack()

        policy = api.ConsumerConfig(
            ack_policy=api.AckPolicy.ALL,
            deliver_policy=api.DeliverPolicy.ALL,
            max_ack_pending=UNACKED,
        )
        await stream.subscribe(
            TOPIC, stream=TOPIC, durable=CLIENT, cb=take, manual_ack=True, config=policy, **_UNLIMITED
        )
        await asyncio.wait_for(done.wait(), PATIENCE)

    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        uvloop.run(self._send(address, begin, rate, total))

    async def _send(self, address: str, begin: int, rate: int, total: int) -> None:
        async with _connected(address) as (_, stream):
            for payload in paced(begin, rate, total):
                await stream.publish(TOPIC, payload)

    def receive(self, address: str, total: int) -> "array[int]":
        return uvloop.run(self._receive(address, total))

    async def _receive(self, address: str, total: int) -> "array[int]":
        ages = array("q")
        async with _connected(address) as (_, stream):
            await self._subscribed(stream, total, lambda payload: ages.append(age(payload)))
        return ages


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[tuple[Any, Any]]:
    """A client, and its JetStream."""
    import nats

    client = await nats.connect(address)
    try:
        yield client, client.jetstream(timeout=PATIENCE, publish_async_max_pending=AHEAD)
    finally:
        await client.close()
