"""Where a stream's messages come from. All of this runs on the broker's loop.

1. A reader hands out portions: batches of about `PORTION` bytes. None is the end. A stream has `AHEAD` of them waiting
   for the thread that sends them, and reads on when it takes one.
2. What is read between two offsets of one topic needs no more than that. Whatever follows, or is of several topics,
   comes from a consumer, which knows their order and is notified of what is new.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, Protocol

from stafeta.broker import Subscription, Topic, Verbs
from stafeta.broker.portions import in_portions
from stafeta.doors.flight.codec import Range, Span, Ticket
from stafeta.errors import Lagging, NoSuchOffset, NoSuchTopic, StafetaError
from stafeta.message import ROW, Batch

PORTION: Final = 2 << 20  # bytes, where a row takes some beside its payload
AHEAD: Final = 2  # portions


class Reader(Protocol):
    async def next(self) -> list[Batch] | None: ...

    def fail(self, error: StafetaError) -> None:
        """Let `next` raise this from now on."""

    def recheck(self) -> None:
        """Users or permissions have changed: fail where it may not be read any more."""

    def close(self) -> None: ...


async def edges(verbs: Verbs, topic: Topic, range_: Range) -> tuple[int, int]:
    """The offsets that a range stands for in a topic."""
    start, stop = range_.start, range_.stop
    if range_.from_time is not None:
        start = await verbs.locate(topic, range_.from_time)
    if range_.to_time is not None:
        stop = await verbs.locate(topic, range_.to_time)
    first, visible = topic.first, topic.visible
    if range_.latest:
        start = visible
    if start is not None and start > visible:
        raise NoSuchOffset(f"Topic {topic.name!r} has no message {start} yet; its last is {visible - 1}.")
    return max(start or 0, first), visible if stop is None else min(stop, visible)


class RangeReader:
    """The messages of one topic between two offsets."""

    def __init__(self, verbs: Verbs, topic: Topic, start: int, stop: int) -> None:
        self._verbs = verbs
        self._topic = topic
        self._at = start
        self._stop = stop
        self._failed: StafetaError | None = None

    async def next(self) -> list[Batch] | None:
        if self._failed is not None:
            raise self._failed
        self._at = self._topic.past_skipped(self._at)
        if self._at >= self._stop:
            return None
        batches = await self._verbs.read(self._topic, self._at, PORTION, self._stop, ROW)
        if not batches or batches[0].base > self._at:
            raise Lagging(
                f"Messages from {self._at} on of {self._topic.name!r} went while they were being read: nobody waits "
                "for them any more, and the topic does not keep them."
            )
        self._at = batches[-1].end
        return batches

    def fail(self, error: StafetaError) -> None:
        self._failed = error

    def recheck(self) -> None:
        """Each portion is checked."""

    def close(self) -> None:
        pass


class SpansReader:
    """The messages of several topics, each between two offsets, one topic after the other. What has gone is left out:
    the offsets of what comes say so."""

    def __init__(self, verbs: Verbs, spans: Sequence[Span]) -> None:
        self._verbs = verbs
        self._left = deque(_present(verbs, spans))
        self._failed: StafetaError | None = None

    async def next(self) -> list[Batch] | None:
        found: list[Batch] = []
        room = PORTION
        while self._left and room > 0:
            if self._failed is not None:
                raise self._failed
            topic, start, stop = self._left.popleft()
            batches = await self._read(topic, start, stop, room)
            if batches:
                found += batches
                room -= sum(batch.size + ROW * batch.count for batch in batches)
                self._left.appendleft((topic, batches[-1].end, stop))
        return found or None

    async def _read(self, topic: Topic, start: int, stop: int, room: int) -> list[Batch]:
        """Some messages from this offset on; none where there is nothing more."""
        tried = -1
        while tried < (start := topic.past_skipped(max(start, topic.first))) < stop:
            tried = start
            if batches := await self._verbs.read(topic, start, room, stop, ROW):
                return batches
        return []

    def fail(self, error: StafetaError) -> None:
        self._failed = error

    def recheck(self) -> None:
        """Each portion is checked."""

    def close(self) -> None:
        self._left.clear()


class TogetherReader:
    """The same in the order of the log."""

    def __init__(self, verbs: Verbs, spans: Sequence[Span]) -> None:
        self._read = verbs.scan(_present(verbs, spans))
        self._failed: StafetaError | None = None

    async def next(self) -> list[Batch] | None:
        if self._failed is not None:
            raise self._failed
        return await self._read(PORTION, ROW) or None

    def fail(self, error: StafetaError) -> None:
        self._failed = error

    def recheck(self) -> None:
        """Each portion is checked."""

    def close(self) -> None:
        pass


def _present(verbs: Verbs, spans: Sequence[Span]) -> list[tuple[Topic, int, int]]:
    """The spans of the topics that there are, up to where these end now."""
    found = []
    for span in spans:
        with suppress(NoSuchTopic):
            topic = verbs.topic(span.topic)
            found.append((topic, span.start, min(span.stop, topic.visible)))
    return found


class ConsumerReader:
    """What a subscription has to get. `stops` are the offsets at which topics end; None: it follows them."""

    def __init__(
        self,
        verbs: Verbs,
        client: str,
        subscription: Subscription,
        stops: dict[str, int] | None,
        closed: Callable[[], None],
    ) -> None:
        self._wakeup = asyncio.Event()
        self._verbs, self._client, self._filter = verbs, client, subscription.filter
        self._consumer = verbs.consumer(client, self._wakeup.set, unbounded_lag=True)
        self._consumer.subscribe(subscription.filter, durable=subscription.durable)
        self._durable = subscription.durable
        self._stops = stops
        self._failed: StafetaError | None = None
        self._closed = closed

    async def next(self) -> list[Batch] | None:
        consumer = self._consumer
        while True:
            if self._failed is not None:
                raise self._failed
            if self._stops is not None and not self._stops:
                return None
            self._wakeup.clear()
            batches = consumer.take(PORTION, ROW)
            if batches is None:
                batches = await consumer.read(PORTION, ROW)
            if batches and not self._durable:  # it has them; whoever is durable acknowledges by himself
                consumer.done(consumer.spans(batches))
            if batches and self._stops is not None:
                batches = self._before_the_end(self._stops, batches)
            if batches:
                return batches
            if consumer.ready:
                await asyncio.sleep(0)
            elif self._stops is not None and not consumer.joining:
                return None
            else:
                await self._wakeup.wait()

    def _before_the_end(self, stops: dict[str, int], batches: list[Batch]) -> list[Batch]:
        kept: list[Batch] = []
        for batch in batches:
            stop = stops.get(batch.topic, 0)
            if batch.base < stop:
                kept.append(batch.cut(batch.base, stop))
            if batch.end >= stop:
                stops.pop(batch.topic, None)
        return kept

    def fail(self, error: StafetaError) -> None:
        self._failed = error
        self._wakeup.set()

    def recheck(self) -> None:
        try:
            self._verbs.check_subscribe(self._client, self._filter)
        except StafetaError as error:
            self.fail(error)

    def close(self) -> None:
        self._consumer.close()
        closed, self._closed = self._closed, lambda: None  # the callback refers to this reader
        closed()


class Stream:
    """A reader's portions on their way to the thread that sends them."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.portions: SimpleQueue[list[Batch] | Exception | None] = SimpleQueue()
        self.full = False  # reading goes on when `resume` is called
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = self._loop.create_task(self._read())

    async def _read(self) -> None:
        portions, room = self.portions, self._room
        try:
            while (portion := await self.reader.next()) is not None:
                portions.put(portion)
                if portions.qsize() >= AHEAD:
                    room.clear()
                    self.full = True
                    if (
                        portions.qsize() >= AHEAD
                    ):  # else one was taken before it could be seen that this is waited for
                        await room.wait()
                    self.full = False
            portions.put(None)
        except StafetaError as error:
            portions.put(error.with_traceback(None))  # which knows the stream
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            portions.put(error)

    def take(self, timeout: float) -> list[Batch] | None:
        """In the thread that sends: the next portion. Raises `queue.Empty` where there is none in time."""
        portion = self.portions.get(timeout=timeout)
        if self.full:
            self._loop.call_soon_threadsafe(self._room.set)
        if isinstance(portion, Exception):
            try:
                raise portion
            finally:
                del portion  # or it would be known to its own traceback
        return portion

    def close(self) -> None:
        # The task knows the stream, and so do errors that the reader has raised: they would keep each other, and what
        # was read ahead, until cycles are looked for.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.reader.close()
        del self.reader


async def live_reader(verbs: Verbs, ticket: Ticket, client: str) -> ConsumerReader:
    """Several topics, or one that is followed, for someone without a name."""
    subscription = verbs.subscribe(client, ticket.wanted, durable=False)
    try:
        commit = verbs.commit()  # if it fails the subscription is undone, and nobody would notice
        await asyncio.wait([commit])
        commit.result()
        stops: dict[str, int] | None = None if ticket.follow else {}
        async for topic in in_portions([] if ticket.range.latest else await verbs.matched_by(subscription)):
            start, stop = await edges(verbs, topic, ticket.range)
            verbs.rewind(subscription, topic, start)
            if stops is not None and start < stop:
                stops[topic.name] = stop
        return ConsumerReader(verbs, client, subscription, stops, lambda: None)
    except BaseException:
        verbs.leave(subscription)
        raise


async def unacknowledged(verbs: Verbs, subscription: Subscription) -> dict[str, int]:
    """The topics on which a subscriber has not acknowledged all, and where they end."""
    await verbs.begun(subscription)
    return {topic.name: topic.visible async for topic, _ in verbs.unacknowledged(subscription)}
