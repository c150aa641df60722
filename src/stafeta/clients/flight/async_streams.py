"""The asyncio twins of what a connection opens. Each is opened by `async with`, by `await`, or by its first use."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from stafeta.clients.closing import EXIT_TIMEOUT, AsyncFinishing
from stafeta.clients.flight.channel import log, spawn
from stafeta.clients.flight.data import Data, batches
from stafeta.clients.flight.producer import PART, Producer, Transaction
from stafeta.clients.flight.subscription import Received, Subscription
from stafeta.errors import StafetaError

_T = TypeVar("_T", bound=Producer | Subscription)


class _Stream(AsyncFinishing, Generic[_T]):
    def __init__(self, open_: Callable[[], Awaitable[_T]]) -> None:
        self._open = open_
        self._opening = asyncio.Lock()
        self._made: _T | None = None

    async def _opened(self) -> _T:
        if self._made is None:
            async with self._opening:
                if self._made is None:
                    self._made = await self._open()
        return self._made

    def _sync(self) -> _T:
        assert self._made is not None, "it was not opened: use `async with`, or await it"
        return self._made

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as of the twin
        """See `Producer.flush`, `Subscription.flush`."""
        made = await self._opened()
        await made._signal.wait_async(made._finishing(timeout))

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as of the twin
        """See `Producer.close`, `Subscription.close`."""
        made = self._made
        if made is None or made._closed:
            return
        try:
            await made._signal.wait_async(made._finishing(timeout))
        finally:
            made._end()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def _complete(self) -> None:
        await self.close()

    async def _abandon(self) -> None:
        await self.close(min(EXIT_TIMEOUT, self._sync()._channel.timeout))

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("Not everything has an answer: %s", error)


class AsyncProducer(_Stream[Producer]):
    """`Producer` for asyncio."""

    async def send(self, payload: str | bytes) -> None:
        """See `Producer.send`."""
        producer = self._made or await self._opened()
        if producer._rows.append(payload):
            await producer._signal.wait_async(producer._room())

    async def send_many(self, payloads: Iterable[str | bytes] | AsyncIterable[str | bytes]) -> None:
        """See `Producer.send_many`. `payloads` may be an asynchronous iterable too."""
        if isinstance(payloads, AsyncIterable):
            async for payload in payloads:
                await self.send(payload)
            return
        producer = await self._opened()
        for full in producer._rows.extend(payloads):
            if full:
                await producer._signal.wait_async(producer._room())
            else:
                await asyncio.sleep(0)

    async def write(self, data: Any) -> None:
        """See `Producer.write`."""
        producer = await self._opened()
        if producer._rows.write(data):
            await producer._signal.wait_async(producer._room())

    @property
    def name(self) -> str:
        return self._sync().name

    @property
    def sent(self) -> int:
        """See `Producer.sent`."""
        return self._sync().sent

    @property
    def acknowledged(self) -> int:
        """See `Producer.acknowledged`."""
        return self._sync().acknowledged

    @property
    def count(self) -> int:
        """See `Producer.count`."""
        return self._sync().count


class AsyncSubscription(_Stream[Subscription]):
    """`Subscription` for asyncio. A batch's `ack` is not awaited: it goes out in the background."""

    def __aiter__(self) -> Self:
        return self

    async def accept_loss(self) -> None:
        """See `Subscription.accept_loss`."""
        subscription = await self._opened()
        if subscription._acks is not None:
            await asyncio.wrap_future(subscription._channel.start("subscribe", subscription._body()))
        await subscription._signal.wait_async(subscription._restarting())

    async def __anext__(self) -> Received:
        subscription = await self._opened()
        found = await subscription._signal.wait_async(subscription._next())
        if found is None:
            raise StopAsyncIteration
        return found


class AsyncTransaction(AsyncFinishing):
    """`Transaction` for asyncio."""

    def __init__(
        self,
        make: Callable[[str, int, int | None], Transaction],
        producer: str,
        begin: Callable[[], Awaitable[tuple[int, int | None]]],
    ) -> None:
        self._make = make
        self._producer = producer
        self._begin = begin
        self._beginning = asyncio.Lock()
        self._made: Transaction | None = None

    async def write(self, topic: str | None, data: Data, part: str = PART, kind: str | None = None) -> int:
        """See `Transaction.write`."""
        found = await asyncio.wrap_future(spawn(batches, data, kind))
        transaction = await self._begun()
        sender = transaction._sender(part)
        return await sender.signal.wait_async(transaction._writing(sender, topic, found))

    async def commit(
        self,
        parts: Sequence[str] | Mapping[str, int] | None = None,
        *,
        label: str | None = None,
        forget_after: int | None = None,
    ) -> bool:
        """See `Transaction.commit`."""
        transaction = await self._begun()
        done = await asyncio.wrap_future(transaction._committing(parts, label, forget_after))
        return bool(done[0]["committed"])

    async def abort(self) -> None:
        """See `Transaction.abort`."""
        await asyncio.wrap_future((await self._begun())._aborting())

    @property
    def counter(self) -> int:
        return self._sync().counter

    @property
    def attempt(self) -> int | None:
        """See `Transaction.attempt`."""
        return self._sync().attempt

    def _sync(self) -> Transaction:
        assert self._made is not None, "it has not begun: use `async with`, or await it"
        return self._made

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def _complete(self) -> None:
        await self.commit()

    async def _abandon(self) -> None:
        await self.abort()

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: the transaction was not aborted: %s", self._producer, error)

    async def _begun(self) -> Transaction:
        async with self._beginning:  # once: to begin it again would drop what is written
            if self._made is None:
                self._made = self._make(self._producer, *await self._begin())
            return self._made
