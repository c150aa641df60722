"""The asyncio twin of the client. (docs/flight-client.md)"""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import flight

from stafeta.addresses import FLIGHT
from stafeta.clients.closing import EXIT_TIMEOUT, AsyncFinishing
from stafeta.clients.flight.async_streams import AsyncProducer, AsyncSubscription, AsyncTransaction
from stafeta.clients.flight.channel import log, spawn
from stafeta.clients.flight.connection import (
    BATCH_ROWS,
    LINGER,
    MAX_MEMORY,
    Connection,
    SubscriptionInfo,
    TopicInfo,
    check_start,
    floors,
    portions,
    subscription_infos,
    topic_infos,
)
from stafeta.clients.flight.data import Data
from stafeta.clients.flight.producer import Producer, Published, begun
from stafeta.clients.flight.read_position import ReadPosition, StartOffset
from stafeta.clients.flight.signals import left
from stafeta.clients.flight.stream_reader import StreamReader
from stafeta.clients.flight.subscription import Subscription
from stafeta.clients.tls import Tls
from stafeta.errors import StafetaError


class connect_async:  # noqa: N801 - it is called as a function is
    """`stafeta.connect` for asyncio: `await` it, or use it with `async with`."""

    def __init__(
        self,
        address: str = FLIGHT,
        *,
        timeout: float = 30.0,
        token: str | None = None,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._connection = AsyncConnection(
            address, timeout=timeout, token=token, tls=tls, user=user, password=password
        )

    def __await__(self) -> Generator[Any, None, "AsyncConnection"]:
        return self._connected().__await__()

    async def __aenter__(self) -> "AsyncConnection":
        return await self._connected()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.__aexit__(kind, error, trace)

    async def _connected(self) -> "AsyncConnection":
        try:
            await self._connection.stats()
        except BaseException:
            await self._connection.close(0.0)
            raise
        log.info("%s: connected.", self._connection.address)
        return self._connection


class AsyncConnection(AsyncFinishing):
    """`Connection` for asyncio: the same methods, each to be awaited, or to be used with `async for` or `async with`.

    Threads do the work, and a task waits for them. One that is cancelled stops to wait: what it has handed over is sent
    all the same, and an action that has begun is finished.
    """

    def __init__(
        self,
        address: str = FLIGHT,
        *,
        timeout: float = 30.0,
        token: str | None = None,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._sync = Connection(address, timeout=timeout, token=token, tls=tls, user=user, password=password)
        self._handed: set[Future[Any]] = set()  # on its way to the thread that sends

    @property
    def address(self) -> str:
        return self._sync.address

    async def publish(self, topic: str | None, data: Data, *, kind: str | None = None) -> Published:
        """See `Connection.publish`."""
        self._sync._channel.check()
        publisher = self._sync._publisher
        handed = spawn(publisher.publishing, topic, data, kind)
        self._handed.add(handed)
        handed.add_done_callback(self._handed.discard)
        return await publisher._signal.wait_async(await asyncio.wrap_future(handed))

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        batch_rows: int = BATCH_ROWS,
        linger: float = LINGER,
        max_memory: int = MAX_MEMORY,
        kind: str | None = None,
    ) -> AsyncProducer:
        """See `Connection.producer`. Used with `async with`, or awaited."""

        async def open_() -> Producer:
            body = {"producer": name, "topic": topic}
            numbers = None if name is None else await self._ask("sequence", body)
            return self._sync._producer(topic, name, numbers, batch_rows, linger, max_memory, kind)

        return AsyncProducer(open_)

    async def read(
        self,
        topic: str,
        *,
        start: StartOffset = None,
        end: StartOffset = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """See `Connection.read`."""
        reading = self._sync._reading(ReadPosition(topic, start=start, end=end, columns=columns, limit=limit))
        try:
            schema = await reading.signal.wait_async(reading.opening())
            return pa.Table.from_batches([batch async for batch in self._batches(reading)], schema)
        finally:
            self._sync._end(reading)

    async def batches(
        self,
        topic: str,
        *,
        start: StartOffset = None,
        end: StartOffset = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """See `Connection.batches`."""
        reading = self._sync._reading(
            ReadPosition(topic, start=start, end=end, columns=columns, limit=limit, follow=follow)
        )
        try:
            async for batch in self._batches(reading):
                yield batch
        finally:
            self._sync._end(reading)

    def subscribe(
        self,
        filter: str,
        *,
        name: str | None = None,
        start: str = "latest",
        columns: Sequence[str] | None = None,
        follow: bool = True,
    ) -> AsyncSubscription:
        """See `Connection.subscribe`. Used with `async with`, or awaited."""
        check_start(start)

        async def open_() -> Subscription:
            if name is not None:
                await self.hold(filter, name=name, start=start)
            subscription = self._sync._subscription(filter, name, start, columns, follow)
            reading = subscription._reading
            try:
                await reading.signal.wait_async(reading.opening())
            except BaseException:
                subscription._end()
                raise
            return subscription

        return AsyncSubscription(open_)

    async def unsubscribe(self, filter: str, *, name: str) -> None:
        """See `Connection.unsubscribe`."""
        await self._ask("unsubscribe", {"client": name, "filter": filter})

    async def hold(self, filter: str, *, name: str, start: str = "latest") -> None:
        """See `Connection.hold`."""
        check_start(start)
        await self._ask("subscribe", {"client": name, "filter": filter, "from": start})

    async def cursors(self, filter: str, *, name: str) -> dict[str, int]:
        """See `Connection.cursors`."""
        return floors(await self._ask("cursors", {"client": name, "filter": filter}))

    async def acknowledge(self, filter: str, done: Mapping[str, int], *, name: str, mark: str = "") -> None:
        """See `Connection.acknowledge`."""
        for ranges in portions(done):
            await self._ask("ack", {"client": name, "filter": filter, "ranges": ranges, "mark": mark})

    async def check(self, marks: Sequence[str]) -> None:
        """See `Connection.check`."""
        await self._ask("check", {"marks": list(marks)})

    async def describe(self, command: Mapping[str, object]) -> flight.FlightInfo:
        """See `Connection.describe`."""
        return await asyncio.wrap_future(self._sync._channel.describe(command))

    async def topics(self, filter: str | None = None) -> list[TopicInfo]:
        """See `Connection.topics`."""
        return topic_infos(await self._ask("topics", {} if filter is None else {"filter": filter}))

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """See `Connection.subscriptions`."""
        return subscription_infos(await self._ask("subscriptions", {}))

    async def stats(self) -> dict[str, Any]:
        """See `Connection.stats`."""
        return (await self._ask("stats", {}))[0]

    def transaction(
        self, producer: str, counter: int | None = None, attempt: int | None = None
    ) -> AsyncTransaction:
        """See `Connection.transaction`. Used with `async with`, or awaited."""

        async def begin() -> tuple[int, int | None]:
            if counter is not None:
                return counter, attempt
            return begun(await self._ask("begin", {"producer": producer}))

        return AsyncTransaction(self._sync._transaction, producer, begin)

    async def committed(self, producer: str) -> int | None:
        """See `Connection.committed`."""
        counter: int | None = (await self._ask("committed", {"producer": producer}))[0]["counter"]
        return counter

    async def label(self, producer: str, counter: int) -> str | None:
        """See `Connection.label`."""
        body = {"producer": producer, "counter": counter}
        label: str | None = (await self._ask("committed", body))[0]["label"]
        return label

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as of the twin
        """See `Connection.close`."""
        errors: list[StafetaError] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for handed in tuple(self._handed):
                with suppress(Exception):  # whose call was cancelled
                    await asyncio.wrap_future(handed)
            for one in self._sync._unfinished():
                try:
                    await one._signal.wait_async(one._finishing(left(deadline)))
                except StafetaError as error:
                    errors.append(error)
                finally:
                    one._end()
        finally:
            self._sync._shut()
        if errors:
            raise errors[0]

    async def _complete(self) -> None:
        await self.close()

    async def _abandon(self) -> None:
        await self.close(min(EXIT_TIMEOUT, self._sync._channel.timeout))

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: not everything was sent: %s", self.address, error)

    async def _ask(self, action: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        return await asyncio.wrap_future(self._sync._channel.start(action, body))

    async def _batches(self, reading: StreamReader) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await reading.signal.wait_async(reading.next())) is not None:
            yield reading.position.shown(batch)
