"""Reading the log: its newest part from memory, the rest from the store, several topics in one order."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import attrgetter

from stafeta.broker.topic import Topic
from stafeta.errors import StoreDamaged
from stafeta.message import Batch
from stafeta.store.port import ReadNext, Span, Store

PIECE = 256  # rows of a batch in memory: readers who want less than all of it still share their batches


_BASE = attrgetter("base")


class Log:
    def __init__(self, store: Store, tail: int) -> None:
        self.visible_position = 1  # that of the first message that is not durable yet
        self._store = store
        self._limit = tail
        self.size = 0  # bytes of what is in memory
        # What is in memory, the oldest commit first, and its cost.
        self._groups: deque[tuple[list[tuple[Topic, Batch]], int]] = deque()

    def add(self, group: list[tuple[Topic, Batch]]) -> None:
        """Keep what was just committed for those who read it right away."""
        kept: list[tuple[Topic, Batch]] = []
        for topic, batch in group:
            if topic.cached or topic.has_watcher:
                kept += [(topic, piece) for piece in _pieces(batch)]
            else:
                topic.tail = None  # what is in memory must be without gaps
        group = kept
        cost = 0
        for topic, batch in group:
            cost += batch.held
            if topic.tail is None:
                topic.tail = [batch]
            else:
                topic.tail.append(batch)
        if not group:
            return
        self._groups.append((group, cost))
        self.size += cost
        while self.size > self._limit:
            oldest, cost = self._groups.popleft()
            self.size -= cost
            for topic, batch in oldest:
                if topic.tail and topic.tail[0] is batch:
                    del topic.tail[0]
                    if not topic.tail:
                        topic.tail = None
                        topic.cached = False

    async def read(self, topic: Topic, start: int, stop: int, size: int, overhead: int = 0) -> list[Batch]:
        """Batches in order from `start` up to `stop`, or until `size` bytes are passed, where a message takes
        `overhead` bytes beside its payload."""
        newest = self.newest(topic, start, stop, size, overhead)
        if newest is not None:
            return newest
        start, stop = max(start, topic.first), min(stop, topic.visible)
        if overhead:
            stop = min(stop, start + max(size // overhead, 1))
        try:
            return await self._store.read(topic.id, start, stop, size)
        except StoreDamaged as error:
            if error.topic == topic.name:
                topic.found_damaged(error.start, error.stop)
            raise

    def scan(self, spans: Sequence[tuple[Topic, int, int]]) -> ReadNext:
        """Batches of several topics, each between two offsets, in the order in which they were committed."""
        topics = {topic.name: topic for topic, _, _ in spans}
        wanted = [
            Span(topic.id, max(start, topic.first), min(stop, topic.visible)) for topic, start, stop in spans
        ]
        read = self._store.scan([span for span in wanted if span.start < span.stop])

        async def next_(size: int, overhead: int) -> list[Batch]:
            try:
                return await read(size, overhead)
            except StoreDamaged as error:
                if error.topic in topics:
                    topics[error.topic].found_damaged(error.start, error.stop)
                raise

        return next_

    async def verify(self, staged: Sequence[int]) -> None:
        """Raises StoreDamaged where a staged batch is not as it was written."""
        await self._store.verify(staged)

    def newest(self, topic: Topic, start: int, stop: int, size: int, overhead: int = 0) -> list[Batch] | None:
        """The same, if it is in memory; else None."""
        start = max(start, topic.first)
        stop = min(stop, topic.visible)
        tail = topic.tail
        topic.cached = True
        if start >= stop:
            return []
        if tail is None or start < tail[0].base:
            return None
        batches: list[Batch] = []
        for at in range(bisect_right(tail, start, key=_BASE) - 1, len(tail)):
            batch = tail[at]
            base = batch.base
            if base >= stop or size <= 0:
                break
            if base < start or base + batch.count > stop:
                batch = batch.cut(start, stop)
            batches.append(batch)
            size -= batch.size + overhead * batch.count
        return batches


def _pieces(batch: Batch) -> list[Batch]:
    pieces = (
        [batch]
        if batch.count <= PIECE
        else [batch.cut(start, start + PIECE) for start in range(batch.base, batch.end, PIECE)]
    )
    for piece in pieces:
        piece.shared = True
    return pieces


def in_order(topics: Iterable[tuple[list[Batch], bool]], size: int, limit: int) -> list[Batch]:
    """Batches of several topics in the order in which their messages were published, up to about `size` bytes.

    Each topic comes as its batches and whether there are more behind them; nothing is returned that might come after
    a message still to be read, nor from the position `limit` on.
    """
    topics = [(batches, more) for batches, more in topics if batches]
    if len(topics) == 1 and topics[0][0][-1].last_position < limit:
        return topics[0][0]
    limit = min([limit - 1, *(batches[-1].last_position for batches, more in topics if more)])
    ordered: list[Batch] = []
    run: tuple[Batch, int, int] | None = None
    for position, offset, batch in merge(*(_places(batches) for batches, _ in topics)):
        if size <= 0 or position > limit:
            break
        if run is not None and run[0] is batch and run[2] == offset:
            run = (batch, run[1], offset + 1)
            continue
        if run is not None:
            ordered.append(run[0].cut(run[1], run[2]))
            size -= ordered[-1].size
        run = (batch, offset, offset + 1)
    if run is not None:
        ordered.append(run[0].cut(run[1], run[2]))
    return ordered


def _places(batches: Iterable[Batch]) -> Iterator[tuple[int, int, Batch]]:
    for batch in batches:
        for offset, position in enumerate(batch.positions, batch.base):
            yield position, offset, batch
