"""The asyncio twin of the client."""

import asyncio
import math
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from stafeta.clients import forks
from stafeta.clients.zeromq.batching import MAX_PAYLOAD, Batcher
from stafeta.clients.zeromq.client import ADDRESS
from stafeta.clients.zeromq.client_core import MAX_WINDOW, ClientCore
from stafeta.clients.zeromq.outbox import PutProgress, Receipt
from stafeta.clients.zeromq.replies import ClientInfo, Message, SubscriptionInfo, TopicInfo
from stafeta.clients.zeromq.request_channel import Dialogue, RequestChannel
from stafeta.errors import NoReply, Refused

if TYPE_CHECKING:
    from stafeta.clients.curve import Curve

_T = TypeVar("_T")


class AsyncClient:
    """`stafeta.Client` for asyncio: the same options, the same methods, each to be awaited.

    Its folder is opened with `async with`, or by the first method that is awaited. Tasks may share it: their calls
    take turns, and a `get` that waits holds the others up, so give a task that waits a client of its own. Writing to
    the folder happens on the loop's own thread: a `put` holds the loop up for one sync of the disk.
    """

    def __init__(
        self,
        address: str = ADDRESS,
        folder: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 5.0,
        retries: int = 3,
        backoff: float = 0.1,
        window: int = MAX_WINDOW,
        max_payload: int = MAX_PAYLOAD,
        folder_wait: float = 5.0,
        name: str = "",
        curve: "Curve | None" = None,
    ) -> None:
        self._channel = RequestChannel(address, timeout, retries, backoff, curve)
        self._core = ClientCore(self._channel, folder, window, folder_wait, name)
        self._max_payload = max_payload
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self._idle = asyncio.Event()  # no call is being carried out
        self._idle.set()
        self._ready = asyncio.Event()  # something has come for the call that waits, or it is to end
        forks.guard(self)

    async def put(
        self, topic: str, data: str | bytes, kind: str | None = None, *, create: bool = False
    ) -> int:
        """See `Client.put`."""
        batcher = Batcher(kind, self._max_payload, create=create)
        batcher.add(data)
        progress = PutProgress()
        await self._run(self._core.finish(topic, batcher.rest(), progress))
        return progress.last

    async def put_many(
        self,
        topic: str,
        data: Iterable[str | bytes] | AsyncIterable[str | bytes],
        kind: str | None = None,
        *,
        create: bool = False,
    ) -> Receipt:
        """See `Client.put_many`. `data` may be an asynchronous iterable too."""
        batcher = Batcher(kind, self._max_payload, create=create)
        progress = PutProgress()
        items = aiter(data) if isinstance(data, AsyncIterable) else iter(data)
        async with self._turn():
            while True:
                try:
                    if isinstance(items, AsyncIterator):
                        batch = await batcher.fill_async(items)
                    else:
                        batch = batcher.fill(items)
                except Exception:
                    await self._run(self._core.finish(topic, batcher.rest(), progress))
                    raise
                if batch is None:
                    break
                await self._run(self._core.take(topic, batch, progress))
            await self._run(self._core.finish(topic, batcher.rest(), progress))
        return progress.receipt

    async def flush(self) -> None:
        """See `Client.flush`."""
        await self._run(self._core.flush())

    async def count(self, topic: str) -> int:
        """See `Client.count`."""
        return await self._run(self._core.count(topic))

    async def subscribe(self, topic: str) -> int:
        """See `Client.subscribe`."""
        return await self._run(self._core.subscribe(topic))

    async def accept_loss(self, topic: str) -> int:
        """See `Client.accept_loss`."""
        return await self._run(self._core.accept_loss(topic))

    async def unsubscribe(self, topic: str) -> None:
        """See `Client.unsubscribe`."""
        await self._run(self._core.unsubscribe(topic))

    async def get(self, topic: str, wait: float = 0.0) -> Message | None:
        """See `Client.get`."""
        found = await self.get_many(topic, 1, wait)
        return found[0] if found else None

    async def get_many(self, topic: str, limit: int = 1000, wait: float = 0.0) -> list[Message]:
        """See `Client.get_many`."""
        return await self._run(self._core.get(topic, limit, wait))

    async def ack(self, messages: Message | Iterable[Message] | str, *, up_to: int | None = None) -> None:
        """See `Client.ack`."""
        for dialogue in self._core.acknowledgements(messages, up_to):
            await self._run(dialogue)

    async def messages(self, topic: str) -> AsyncIterator[Message]:
        """See `Client.messages`."""
        try:
            while True:
                for message in await self.get_many(topic, wait=math.inf):
                    yield message
                    await self._run(self._core.note(message))
        except GeneratorExit:
            if not self._core.closed:
                with suppress(NoReply):  # then the next get tells it
                    await self._run(self._core.tell(topic))
            raise

    async def wait(self, topics: Sequence[str], wait: float = math.inf) -> list[str]:
        """See `Client.wait`."""
        return await self._run(self._core.wait(topics, wait))

    async def watch(self, *filters: str, wait: float = 0.0) -> list[Message]:
        """See `Client.watch`."""
        return await self._run(self._core.watch(filters, wait))

    async def last(self, topic: str, count: int = 1) -> list[Message]:
        """See `Client.last`."""
        return await self._run(self._core.last(topic, count))

    async def stats(self) -> dict[str, Any]:
        """See `Client.stats`."""
        return await self._run(self._core.stats())

    async def clients(self) -> list[ClientInfo]:
        """See `Client.clients`."""
        return await self._run(self._core.clients())

    async def subscriptions(self, filter: str = "") -> list[SubscriptionInfo]:
        """See `Client.subscriptions`."""
        return await self._run(self._core.subscriptions(filter))

    async def topics(self, filter: str = "#") -> list[TopicInfo]:
        """See `Client.topics`."""
        return await self._run(self._core.topics(filter))

    async def skip(self, topic: str, first: int, last: int) -> None:
        """See `Client.skip`."""
        await self._run(self._core.skip(topic, first, last))

    async def close(self) -> None:
        """See `Client.close`. A call that waits ends with `ClientClosed`."""
        if self._core.is_anothers:
            return
        self._core.closed = True
        self._ready.set()
        await self._idle.wait()
        self._core.close()

    async def __aenter__(self) -> "AsyncClient":
        await self._run(self._core.opened())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forked(self) -> None:
        self._core.forked()

    async def _run(self, dialogue: Dialogue[_T]) -> _T:
        self._core.check()
        async with self._turn():
            self._idle.clear()
            try:
                while True:
                    self._core.check()
                    seconds = next(dialogue)
                    await self._readable(self._channel.sockets, seconds)
            except StopIteration as end:
                result: _T = end.value
                return result
            except Refused:
                raise
            except BaseException:
                self._core.reset()
                raise
            finally:
                self._idle.set()

    async def _readable(self, sockets: "list[zmq.Socket[bytes]]", seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ready = self._ready
        ready.clear()
        descriptors = [socket.fileno() for socket in sockets]
        for descriptor in descriptors:
            loop.add_reader(descriptor, ready.set)
        try:
            # The descriptor tells of a change only once; what came before it was watched shows here.
            if not any(socket.poll(0) for socket in sockets):
                # Not wait_for: in Python 3.11 it may swallow a cancellation.
                async with asyncio.timeout(seconds):
                    await ready.wait()
        except TimeoutError:
            pass
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        # What feeds a put_many may itself come from this client, in the task that has the turn already.
        if self._holder is asyncio.current_task():
            yield
            return
        async with self._lock:
            self._holder = asyncio.current_task()
            try:
                yield
            finally:
                self._holder = None
