"""Reading what topics hold: for a subscription what it has not acknowledged, for others whatever is there."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from stafeta.broker.counts import Counts
from stafeta.broker.cursor import Cursor
from stafeta.broker.log import Log, in_order
from stafeta.broker.portions import in_portions
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import StoreDamaged
from stafeta.message import Batch
from stafeta.store.port import ReadNext, Store

FEW = 4 << 10  # bytes read at least of each of several topics
AROUND = 1024  # messages read together, where some of them are acknowledged
PIECE = 64  # bytes that a batch counts for beside its messages, however small it is
MANY = 1000  # messages that are put in order at once


class LogReader:
    def __init__(self, log: Log, store: Store, counts: Counts) -> None:
        self._log = log
        self._counts = counts
        self._store = store

    # --- for a subscription

    async def fetch(
        self,
        subscription: Subscription,
        topics: Iterable[Topic] | None,
        size: int,
        limit: int | None = None,
        *,
        in_turn: bool = False,
    ) -> list[Batch]:
        """What the subscription has not acknowledged on these topics (None: on all that it has cursors on), in order,
        up to about `size` bytes and, of each topic, `limit` messages.

        Whoever says how far he is by one position gets them `in_turn`: of other topics nothing that comes after what
        waits behind damage, since he would acknowledge that unseen."""
        # As of one instant: else what is committed while one topic is read would come before what it came after.
        before = self._log.visible_position
        ends: list[tuple[Topic, Cursor, int]] = []
        async for topic in in_portions(list(subscription.cursors) if topics is None else topics):
            cursor = subscription.cursors.get(topic)
            if cursor is not None and cursor.floor < topic.visible:
                ends.append((topic, cursor, topic.visible))
        share = size if len(ends) <= 1 else max(size // len(ends), FEW)
        found: list[tuple[list[Batch], bool]] = []
        damaged: StoreDamaged | None = None
        cursors: dict[str, Cursor] = {}  # of a durable subscription
        for topic, cursor, visible in ends:
            if subscription.durable:
                cursors[topic.name] = cursor
            try:
                found.append(await self._pending(topic, cursor, visible, share, limit))
            except StoreDamaged as error:
                damaged = damaged or error
                if in_turn:
                    before = min(before, await self._next_position(topic, error.stop))
            await asyncio.sleep(0)  # what is in memory is read without waiting
        if sum([batch.count for batches, _ in found for batch in batches]) > MANY and len(found) > 1:
            batches = await asyncio.to_thread(in_order, found, size, before)
        else:
            batches = in_order(found, size, before)
        if damaged is not None and not batches:
            raise damaged  # else what is whole comes first
        self._count(batches, cursors)
        return batches

    def _count(self, batches: list[Batch], cursors: dict[str, Cursor]) -> None:
        counts = self._counts
        for batch in batches:
            counts.delivered += batch.count
            if (cursor := cursors.get(batch.topic)) is not None:
                counts.redelivered += cursor.hand_out(batch.base, batch.end)

    async def _pending(
        self, topic: Topic, cursor: Cursor, visible: int, size: int, limit: int | None
    ) -> tuple[list[Batch], bool]:
        """What a cursor has before it, and whether there is more. Gaps between what was acknowledged may be many and
        small: what lies between them is read with them, and left out."""
        batches: list[Batch] = []
        left = visible if limit is None else limit
        span = cursor.next_pending(topic.first, visible)
        while span is not None and size > 0 and left > 0:
            start, stop = span
            stop = min(max(stop, min(start + AROUND, visible)), start + left)
            try:
                read = await self._log.read(topic, start, stop, size)
            except StoreDamaged:
                if batches:
                    return batches, True
                raise
            reached = read[-1].end if read else stop
            for batch in read:
                for a, b in cursor.pending(batch.end, batch.base):
                    batches.append(batch.cut(a, b))
                    size -= batches[-1].size + PIECE
                    left -= b - a
            span = cursor.next_pending(reached, visible)
            await asyncio.sleep(0)
        return batches, span is not None

    async def has_pending(self, subscription: Subscription, one: Topic | None) -> bool:
        """True where there is something that the subscription has not acknowledged, on one topic or (None) on any."""
        async for topic in in_portions(list(subscription.cursors) if one is None else [one]):
            cursor = subscription.cursors.get(topic)
            if cursor is not None and cursor.next_pending(topic.first, topic.visible) is not None:
                return True
        return False

    async def unacknowledged(self, subscription: Subscription) -> AsyncIterator[tuple[Topic, int]]:
        """The topics on which the subscription has not acknowledged all, and the offset below which it has."""
        async for topic in in_portions(list(subscription.cursors)):
            cursor = subscription.cursors.get(topic)
            if cursor is not None and cursor.floor < topic.visible:
                yield topic, cursor.floor

    # --- for anybody

    async def read(
        self, topic: Topic, start: int, size: int, stop: int | None = None, overhead: int = 0
    ) -> list[Batch]:
        """Whatever the topic still holds from this offset on, acknowledged or not."""
        return await self._log.read(topic, start, topic.visible if stop is None else stop, size, overhead)

    def scan(self, spans: Sequence[tuple[Topic, int, int]]) -> ReadNext:
        """Whatever several topics still hold between two offsets each, in the order in which it was committed."""
        return self._log.scan(spans)

    async def locate(self, topic: Topic, time: int) -> int:
        """The offset of the first message that is not older than `time` (microseconds)."""
        return min(max(await self._store.locate(topic.id, time, topic.first), topic.first), topic.visible)

    async def measure(self, topic: Topic, start: int) -> int:
        """Bytes of payload from this offset on, or close to it."""
        return await self._store.measure(topic.id, max(start, topic.first))

    async def offset_at(self, topic: Topic, position: int, start: int) -> int:
        """The first offset from `start` on whose message has this position or a later one; the end, where none has."""
        low, high, step = max(start, topic.first), topic.visible, 1
        while low + step <= high:  # further and further, since it is mostly near
            if not await self._comes_before(topic, low + step - 1, position):
                high = low + step - 1
                break
            low, step = low + step, step * 2
        while low < high:
            middle = (low + high) // 2
            if await self._comes_before(topic, middle, position):
                low = middle + 1
            else:
                high = middle
        return low

    async def _comes_before(self, topic: Topic, offset: int, position: int) -> bool:
        try:
            batches = await self._log.read(topic, offset, offset + 1, 1)
        except StoreDamaged as error:  # where the next does that can be read, this does
            return await self._next_position(topic, error.stop) < position
        return not batches or batches[0].positions[0] < position  # what is collected came before

    async def _next_position(self, topic: Topic, offset: int) -> int:
        """The position of the first message from this offset on that can be read; that of the next to come, where none
        can."""
        batch = await self.next_readable(topic, offset)
        return self._log.visible_position if batch is None else batch.positions[0]

    async def next_readable(self, topic: Topic, offset: int) -> Batch | None:
        """The first messages from this offset on that are not damaged."""
        while offset < topic.visible:
            try:
                batches = await self._log.read(topic, offset, topic.visible, 1)
            except StoreDamaged as error:
                offset = max(error.stop, offset + 1)
                continue
            return batches[0] if batches else None
        return None
