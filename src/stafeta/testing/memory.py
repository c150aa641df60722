"""A store in memory, for tests: the same rules, nothing on disk. Opening it again is a restart."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from stafeta.errors import StoreConflict
from stafeta.histogram import SECONDS, Histogram
from stafeta.message import PAYLOAD, TIME, Batch, Row, RowBatch
from stafeta.store.port import (
    Append,
    CommitRecord,
    CursorRecord,
    Group,
    KeepRecord,
    ProducerRecord,
    Promotion,
    ReadNext,
    Snapshot,
    Span,
    StagedRecord,
    SubscriptionRecord,
    TopicRecord,
    Usage,
)

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch

_K = TypeVar("_K")
_V = TypeVar("_V")


class MemoryStore:
    def __init__(self, *, checkpoint_rows: int = 1000) -> None:
        self._checkpoint_rows = checkpoint_rows
        self.sync_seconds = Histogram(SECONDS)
        self._topics: dict[int, TopicRecord] = {}
        self._kept: dict[int, KeepRecord] = {}
        self._log: dict[int, list[RowBatch]] = {}
        self._ends: dict[int, int] = {}
        self._subscriptions: dict[int, SubscriptionRecord] = {}
        self._cursors: dict[tuple[int, int], CursorRecord] = {}
        self._producers: dict[tuple[int, str], ProducerRecord] = {}
        self._recent: list[Append] = []
        self._transactions: dict[str, int] = {}
        self._committed: dict[tuple[str, int], CommitRecord] = {}
        self._begun: dict[str, int] = {}
        self._runs: list[tuple[int, str]] = []
        self._staged: dict[int, tuple[StagedRecord, RowBatch]] = {}
        self._client_id = 0
        self._position = 1
        self._first_offset = 1
        self._last_topic = 0

    @property
    def checkpoint_due(self) -> bool:
        return sum(append.batch.count for append in self._recent) >= self._checkpoint_rows

    async def open(self) -> Snapshot:
        return Snapshot(
            topics=[t._replace(next=max(t.next, self._ends.get(t.id, 0))) for t in self._topics.values()],
            kept=list(self._kept.items()),
            subscriptions=list(self._subscriptions.values()),
            cursors=[(*key, cursor) for key, cursor in self._cursors.items()],
            producers=list(self._producers.values()),
            recent=[append for append in self._recent if append.topic in self._topics],
            first_offset=self._first_offset,
            transactions=list(self._transactions.items()),
            committed=[(*key, *record) for key, record in self._committed.items()],
            begun=list(self._begun.items()),
            runs=list(self._runs),
            staged=[record for record, _ in self._staged.values()],
            client_id=self._client_id,
            position=self._position,
            last_topic=self._last_topic,
            last_subscription=max(self._subscriptions, default=0),
            last_staged=max(self._staged, default=0),
        )

    def write_ahead(self, batch: "ColumnBatch", done: Callable[[], None]) -> bool:
        return False

    async def commit(self, group: Group) -> None:
        fresh = {record.id: (record, batch) for record, batch in group.staged}
        promotions = [append for append in group.appends if isinstance(append, Promotion)]
        appends = [self._promoted(a, fresh) if isinstance(a, Promotion) else a for a in group.appends]
        ends: dict[int, int] = {}
        for topic, batch in appends:
            end = ends.get(topic) or self._ends.get(topic) or batch.base
            if end != batch.base:
                raise StoreConflict(
                    f"Topic {batch.topic} ends at offset {end}, an append expected {batch.base}."
                )
            ends[topic] = batch.end
        for topic, batch in appends:
            self._log.setdefault(topic, []).append(_as_rows(batch))
        self._ends.update(ends)
        self._topics.update(group.topics)
        _put(self._kept, group.kept)
        self._last_topic = max(self._last_topic, *group.topics, 0)
        for topic in group.forgotten_topics:
            self._topics.pop(topic, None)
            self._log.pop(topic, None)
            self._ends.pop(topic, None)
            self._producers = {key: record for key, record in self._producers.items() if key[0] != topic}
        if group.first_offset is not None:
            self._first_offset = group.first_offset
        for id_, subscription in group.subscriptions.items():
            if subscription is not None:
                self._subscriptions[id_] = subscription
            else:
                self._subscriptions.pop(id_, None)
        gone = {
            id_ for id_, subscription in group.subscriptions.items() if subscription is None
        } | group.reset
        if gone:
            self._cursors = {key: cursor for key, cursor in self._cursors.items() if key[0] not in gone}
        for key, cursor in group.cursors.items():
            known = self._cursors.pop(key, None)
            above: dict[int, int | None] = {}
            if known is not None and not cursor.whole:
                above.update(known.above)
            above.update(cursor.ranges)
            ranges = sorted((start, stop) for start, stop in above.items() if stop is not None)
            self._cursors[key] = CursorRecord(cursor.floor, ranges)
        _put(self._transactions, group.transactions)
        _put(self._committed, group.committed)
        _put(self._begun, group.begun)
        if group.run is not None:
            self._runs.append(group.run)
        for record, staged in group.staged:
            self._staged[record.id] = record, _as_rows(staged)
        for id_ in [*group.unstaged, *(promotion.staged for promotion in promotions)]:
            self._staged.pop(id_, None)
        if group.client_id is not None:
            self._client_id = group.client_id
        self._position = max(self._position, group.position)
        self._recent += appends
        if group.checkpoint:
            self._recent.clear()
            self._producers.update({(record.topic, record.producer): record for record in group.producers})
            for producer in group.forgotten:
                self._producers.pop(producer, None)

    def _promoted(self, promotion: Promotion, fresh: dict[int, tuple[StagedRecord, Batch]]) -> Append:
        record, batch = fresh.get(promotion.staged) or self._staged[promotion.staged]
        rows: list[Row] = [
            (
                promotion.position + at,
                time or promotion.time,
                record.producer,
                source,
                kind,
                None,
                payload,
            )
            for at, (_, time, _, source, kind, _, payload) in enumerate(
                _as_rows(batch).rows[promotion.row : promotion.row + promotion.rows]
            )
        ]
        return Append(promotion.topic, RowBatch(batch.topic, promotion.base, rows))

    async def read(self, topic: int, start: int, stop: int, size: int) -> list[Batch]:
        batches: list[Batch] = []
        for batch in self._log.get(topic, ()):
            if batch.end > start and batch.base < stop and size > 0:
                batches.append(batch.cut(start, stop))
                size -= batches[-1].size
        return batches

    def scan(self, spans: Sequence[Span]) -> ReadNext:
        found: list[Batch] = [
            batch.cut(span.start, span.stop)
            for span in spans
            for batch in self._log.get(span.topic, ())
            if batch.end > span.start and batch.base < span.stop
        ]
        found.sort(key=lambda batch: batch.positions[0], reverse=True)

        async def read(size: int, overhead: int) -> list[Batch]:
            batches: list[Batch] = []
            while found and size > 0:
                batches.append(found.pop())
                size -= batches[-1].size + overhead * batches[-1].count
            return batches

        return read

    async def horizon(self, topic: int, *, before: int | None = None, size: int | None = None) -> int:
        batches = self._log.get(topic, [])
        old, spare = 1, 1
        for batch in batches:
            if before is not None and batch.rows[-1][TIME] < before:
                old = batch.end
        if size is not None:
            for batch in reversed(batches):
                size -= batch.size
                if size <= -batch.size:
                    spare = batch.end
                    break
        return max(old, spare)

    async def locate(self, topic: int, time: int, first: int) -> int:
        for batch in self._log.get(topic, []):
            for offset, row in enumerate(batch.rows, batch.base):
                if offset >= first and row[TIME] >= time:
                    return offset
        return self._ends.get(topic, 1)

    async def measure(self, topic: int, start: int) -> int:
        batches = self._log.get(topic, [])
        return sum(batch.cut(start, batch.end).size for batch in batches if batch.end > start)

    async def verify(self, staged: Sequence[int]) -> None:
        pass

    async def sweep(self) -> bool:
        for topic in self._topics.values():
            if topic.id in self._log:
                self._log[topic.id] = [batch for batch in self._log[topic.id] if batch.end > topic.first]
        return False

    async def usage(self) -> Usage:
        return Usage(0, 0, 0, 0)

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _put(known: dict[_K, _V], changes: Mapping[_K, _V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value


def _as_rows(batch: Batch) -> RowBatch:
    if isinstance(batch, RowBatch):
        return batch
    columns = [batch.column(index) for index in range(PAYLOAD + 1)]
    return RowBatch(batch.topic, batch.base, cast("list[Row]", list(zip(*columns, strict=True))))
