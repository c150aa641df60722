"""Watching: clients that ask for what is published from now on, and for which nothing is kept.

1. A watcher has a consumer. ZeroMQ does not say when a connection ends, so a watcher that has not asked for a minute
   ends, and one that is too far behind ends at once; its next request gets that error.
2. What was handed out is gone: if the reply is lost, so are its messages.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from stafeta.broker import Verbs
from stafeta.doors.zeromq.codec import Watch
from stafeta.errors import Lagging, NotAuthenticated, NotPermitted, StoreError
from stafeta.message import Batch
from stafeta.names import WATCH_PREFIX, check_client

IDLE = 60.0  # seconds without a request, after which a watcher is taken for gone
SWEEP = 5.0  # seconds between two looks
OVERHEAD = 100  # bytes that a message takes in a reply beside its payload, roughly: an empty one is not free


class Watcher:
    def __init__(self, verbs: Verbs, client: str) -> None:
        self.wakeup = asyncio.Event()
        self.consumer = verbs.consumer(client, self.wakeup.set)
        self.filters: set[str] = set()
        self.asking = 0
        self.asked = 0.0
        self._ended: Lagging | None = None  # the error of its next request
        self.rechecked = False  # users have changed: it has to be seen whether it may still be told anything

    def end_if_lagging(self) -> None:
        """Hold nothing more for it where it is too far behind."""
        if self.consumer.lagging is not None:
            self._ended = self.consumer.lagging
            self.consumer.close()

    def subscribe(self, filters: Sequence[str]) -> None:
        if self._ended is not None:
            raise self._ended
        for filter_ in filters:
            if filter_ not in self.filters:
                self.consumer.subscribe(filter_, durable=False)
                self.filters.add(filter_)

    def _check(self) -> None:
        """Raises where nothing of one of its filters may come any more."""
        if self.rechecked:
            self.rechecked = False
            for filter_ in self.filters:
                self.consumer.subscribe(filter_, durable=False)  # which it may have lost meanwhile

    async def next(self, size: int, wait: float) -> list[Batch]:
        """Messages of about `size` bytes, or none after `wait` seconds."""
        end = asyncio.get_running_loop().time() + wait
        with suppress(TimeoutError):
            while True:
                self.wakeup.clear()
                self._check()
                batches = self.consumer.take(size, OVERHEAD)
                if batches is None:
                    batches = await self.consumer.read(size, OVERHEAD)
                if batches:
                    self.consumer.done(self.consumer.spans(batches))
                    return batches
                if not self.consumer.ready:
                    if not wait:
                        break
                    # Reading is not ended in the middle: what it has handed out until then would be lost.
                    async with asyncio.timeout_at(end):
                        await self.wakeup.wait()
        return []


class Watchers:
    """Those of one door."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[tuple[str, str], Watcher] = {}  # by user and client
        self._timer: asyncio.TimerHandle | None = None
        self._polls: set[asyncio.Event] = set()  # of others who wait for messages

    @contextmanager
    def polling(self, wakeup: asyncio.Event) -> Iterator[None]:
        """Set the event also when users have changed."""
        self._polls.add(wakeup)
        try:
            yield
        finally:
            self._polls.discard(wakeup)

    def recheck(self) -> None:
        """Users or permissions have changed."""
        for watcher in self._watchers.values():
            watcher.rechecked = True
            watcher.wakeup.set()
        for wakeup in self._polls:
            wakeup.set()

    async def ask(self, verbs: Verbs, request: Watch, size: int) -> list[Batch]:
        """What there is for a client, which is made a watcher where it is none."""
        verbs.check_alive()
        name = WATCH_PREFIX + request.client
        key = verbs.principal.user, name
        if not request.filters:
            self._end(key)
            return []
        check_client(name)
        watcher = self._watchers.get(key)
        if watcher is None:
            watcher = self._watchers[key] = Watcher(verbs, name)
            if self._timer is None:
                self._timer = self._loop.call_later(SWEEP, self._sweep)
        watcher.asking += 1
        try:
            known = len(watcher.filters)
            watcher.subscribe(request.filters)
            if len(watcher.filters) > known:
                await self._durable(verbs, key)
            return await watcher.next(size, request.wait)
        except (Lagging, NotAuthenticated, NotPermitted):
            self._end(key)
            raise
        finally:
            watcher.asking -= 1
            watcher.asked = self._loop.time()

    async def _durable(self, verbs: Verbs, key: tuple[str, str]) -> None:
        try:
            await asyncio.shield(verbs.commit())
        except StoreError:
            self._end(key)  # its subscriptions were undone: it begins anew when it asks again
            raise

    def _sweep(self) -> None:
        for key, watcher in list(self._watchers.items()):
            watcher.end_if_lagging()
            if not watcher.asking and self._loop.time() - watcher.asked > IDLE:
                self._end(key)
        self._timer = self._loop.call_later(SWEEP, self._sweep) if self._watchers else None

    def close(self) -> None:
        """End all of them."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._watchers):
            self._end(key)

    def _end(self, key: tuple[str, str]) -> None:
        watcher = self._watchers.pop(key, None)
        if watcher is not None:
            watcher.consumer.close()
