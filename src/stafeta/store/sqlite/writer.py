"""One group, one transaction."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, groupby
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, cast

import orjson
from isal.isal_zlib import crc32

from stafeta.columns import SMALL, ColumnBatch, joined, together
from stafeta.errors import StoreConflict, StoreDamaged
from stafeta.histogram import SECONDS, Histogram
from stafeta.message import PAYLOAD, TIME, Batch, Row, RowBatch
from stafeta.store.blocks import (
    HeaderColumns,
    RunHead,
    checksum,
    encode_columns,
    encode_rows,
    header_columns,
    make_header,
)
from stafeta.store.port import Append, CursorChange, Group, Promotion, StagedRecord
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.forgotten import Forgotten
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.seals import opened
from stafeta.store.sqlite.segments import BodyLocation, Segments

BLOCK_ROWS = 1 << 15
BLOCK_BYTES = 1 << 20  # of payload; a larger block makes a topic that has little in it dear to read
COLUMNS_BYTES = 4 << 20  # the same, where a block has one topic
# Small batches of several topics share a block, up to so much: reading it whole costs less than another block would.
SHARED_ROWS = 1 << 12
SHARED_BYTES = 1 << 16

RowsPiece: TypeAlias = tuple[int, RowBatch, int]  # topic, messages, bytes of payload
ColumnsPiece: TypeAlias = tuple[int, ColumnBatch]
Ends: TypeAlias = dict[int, tuple[int, int, int]]  # of a topic: next offset, bytes it ever held, latest time


class Made(NamedTuple):
    """A block as it goes into the database."""

    id: int
    rows: int
    columns: HeaderColumns
    runs: list[RunHead]
    body: Any  # a buffer, or the `BodyLocation` of one that was put away before
    body_checksum: int


class Promotions(list[Promotion]):
    """All of a staged batch."""


class ColumnsPieces(list[ColumnsPiece]):
    """The batches that share a block."""


class Writer:
    """Used by the writer's thread, or while that is idle by the loop's."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        recent: RecentRuns,
        checkpoint: Checkpoint,
        names: dict[int, str],
        ends: Ends,
        meta: dict[str, int],
        segments: Segments,
        forgotten: Forgotten,
    ) -> None:
        self._connection = connection
        self._recent = recent
        self._checkpoint = checkpoint
        self._names = names  # shared with the reader, which looks names up in it
        self._ends = ends
        self._segments = segments
        self._forgotten = forgotten
        self.last_block = meta["block"]
        self.position = meta.get("position", 1)
        self.written = 0  # bytes since it was last set to 0
        self.sync_seconds = Histogram(SECONDS)  # of commits: writing to the disk, and waiting for it
        self._disk_seconds = 0.0  # of the one under way

    def commit(self, group: Group) -> None:
        ends: Ends = {}
        self._disk_seconds = 0.0
        if group.checkpoint and not (self._checkpoint.ready or self._checkpoint.under_way):
            self._checkpoint.begin(self.last_block)
        slice_ = 0
        if group.only_appends and not self._checkpoint.under_way:
            blocks = list(self._blocks(group, ends))
            # One statement is a transaction by itself.
            with self._transaction() if len(blocks) > 1 else nullcontext():
                self._insert(blocks)
        else:
            with self._transaction():
                self._stage(group)
                blocks = list(self._blocks(group, ends))
                self._insert(blocks)
                self._state(group)
                if group.checkpoint:
                    position = max(self.position, group.position)
                    slice_ = self._checkpoint.finish(group.producers, group.forgotten, position)
                else:
                    slice_ = self._checkpoint.write_slice()
        for topic in group.topics.values():
            self._names[topic.id] = topic.name
            self._ends.setdefault(topic.id, (topic.next, 0, 0))
        self._ends.update(ends)
        for id_ in group.forgotten_topics:
            self._forgotten.add(id_)
            self._names.pop(id_, None)
            self._ends.pop(id_, None)
        self.position = max(self.position, group.position)
        if blocks:
            self.last_block = blocks[-1].id
        for block in blocks:
            self._recent.add_block(block.id, block.runs)
        self._checkpoint.wrote(slice_)
        if group.checkpoint:
            self._checkpoint.finished()
        self._checkpoint.begin_if_due(self.last_block)
        self.written += 4096 * slice_
        self.sync_seconds.add(self._disk_seconds)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            began = perf_counter()
            self._connection.execute("COMMIT")
            self._disk_seconds += perf_counter() - began
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _blocks(self, group: Group, ends: Ends) -> Iterator[Made]:
        block = self.last_block
        for portion in _portions(group.appends):
            block += 1
            if isinstance(portion, Promotions):
                yield self._promoted(block, portion, ends)
            elif isinstance(portion, ColumnsPieces):
                yield self._of_columns(block, portion, ends)
            else:
                yield self._of_rows(block, portion, ends)

    def _of_rows(self, block: int, pieces: list[RowsPiece], ends: Ends) -> Made:
        # Inlined where it can be: with many topics this is done for every message.
        rows: list[Row] = []
        runs: list[RunHead] = []
        known = self._ends
        for topic, batch, size in pieces:
            base, count, own = batch.base, batch.count, batch.rows
            end, total, latest = ends.get(topic) or known.get(topic) or (base, 0, 0)
            if end != base:
                raise _conflict(topic, end, base)
            total += size
            if own[-1][TIME] > latest:
                latest = own[-1][TIME]
            ends[topic] = base + count, total, latest
            runs.append((topic, base, count, latest, total))
            rows += own
        columns, body = encode_rows(rows)
        return Made(block, len(rows), columns, runs, body, crc32(body))

    def _of_columns(self, block: int, pieces: "ColumnsPieces", ends: Ends) -> Made:
        runs = [
            self._run(topic, batch.base, batch.count, batch.latest, batch.size, ends)
            for topic, batch in pieces
        ]
        rows = sum([batch.count for _, batch in pieces])
        batches = [batch for _, batch in pieces]
        whole = batches[0] if len(batches) == 1 else ColumnBatch("", 0, rows, together(batches), 0)
        if whole.ahead:
            (written,) = whole.ahead
            return Made(block, rows, header_columns(whole), runs, written.place, written.checksum)
        columns, body = encode_columns(whole)
        return Made(block, rows, columns, runs, body, crc32(body))

    def _run(self, topic: int, base: int, rows: int, time: int, size: int, ends: Ends) -> RunHead:
        """A run at the end of its topic."""
        end, total, latest = ends.get(topic) or self._ends.get(topic) or (base, 0, 0)
        if end != base:
            raise _conflict(topic, end, base)
        ends[topic] = (base + rows, total + size, max(latest, time))
        return topic, base, rows, max(latest, time), total + size

    def _promoted(self, block: int, promotions: "Promotions", ends: Ends) -> Made:
        first, staged = promotions[0], promotions[0].staged
        row = self._connection.execute(schema.GET_STAGED, (staged,)).fetchone()
        found = None if row is None else opened("staged", row)
        if found is None:
            raise StoreDamaged(f"Staged batch {staged} is not in the store any more, or damaged.")
        _, producer, _, _, _, count, size, _, constants, segment, body_checksum = found
        (content,) = self._connection.execute(schema.GET_STAGED_BODY, (staged,)).fetchone()
        columns = HeaderColumns(orjson.loads(constants), {})
        sizes = columns.constants.pop("sizes", [size])
        latest = columns.constants.pop("latest", 0)
        times = latest if isinstance(latest, list) else [latest]
        columns.constants.update(position=first.position, producer=producer, counter=None)
        if columns.constants.get("time") == 0:
            columns.constants["time"] = first.time
        runs = [
            self._run(one.topic, one.base, one.rows, time or one.time, bytes_, ends)
            for one, time, bytes_ in zip(promotions, times, sizes, strict=True)
        ]
        self._connection.execute(schema.DROP_STAGED, (staged,))
        return Made(block, count, columns, runs, BodyLocation(segment, content), body_checksum)

    def _insert(self, blocks: list[Made]) -> None:
        began = perf_counter()
        bodies = iter(
            self._segments.put([made.body for made in blocks if not isinstance(made.body, BodyLocation)])
        )
        for block, rows, columns, runs, body, body_checksum in blocks:
            segment, content = body if isinstance(body, BodyLocation) else next(bodies)
            header = make_header(block, rows, columns, runs, segment)
            row = (block, header, segment, content, checksum(header, body_checksum))
            self._connection.execute(schema.ADD_BLOCK, row)
            self.written += len(content) + len(header) + 4096
        self._disk_seconds += perf_counter() - began

    def _stage(self, group: Group) -> None:
        made = [_encoded(record, batch) for record, batch in group.staged]
        bodies = self._segments.put([body for _, body in made])
        for (staged, _), (constants, whole), (segment, content) in zip(
            group.staged, made, bodies, strict=True
        ):
            row = (*staged, orjson.dumps(constants), segment, crc32(whole), content)
            self._connection.execute(schema.ADD_STAGED, row)
            self.written += len(content)

    def _state(self, group: Group) -> None:
        many = self._connection.executemany
        many(schema.SET_TOPIC, group.topics.values())
        many(schema.SET_KEPT, [(id_, *keep) for id_, keep in group.kept.items() if keep is not None])
        many(schema.DROP_KEPT, [(id_,) for id_, keep in group.kept.items() if keep is None])
        for id_, subscription in group.subscriptions.items():
            if subscription is None:
                self._connection.execute(schema.DROP_SUBSCRIPTION, (id_,))
            else:
                self._connection.execute(schema.SET_SUBSCRIPTION, subscription)
            if subscription is None or id_ in group.reset:
                self._connection.execute(schema.DROP_CURSORS_OF, (id_,))
                self._connection.execute(schema.DROP_ACKED_OF, (id_,))
        if group.cursors:
            self._cursors(group.cursors)
        many(schema.SET_SKIPPED, group.skipped)
        if group.forgotten_topics:
            self._forget(group.forgotten_topics)
        if group.first_offset is not None:
            self._connection.execute(schema.SET_META, ("first_offset", group.first_offset))
        many(schema.SET_DONE, [one for one in group.transactions.items() if one[1] is not None])
        many(schema.DROP_DONE, [(name,) for name, last in group.transactions.items() if last is None])
        kept = [(*key, *record) for key, record in group.committed.items() if record is not None]
        many(schema.SET_COMMITTED, kept)
        many(schema.DROP_COMMITTED, [key for key, record in group.committed.items() if record is None])
        many(schema.SET_BEGUN, [one for one in group.begun.items() if one[1] is not None])
        many(schema.DROP_BEGUN, [(name,) for name, attempt in group.begun.items() if attempt is None])
        if group.run is not None:
            self._connection.execute(schema.SET_RUN, group.run)
        many(schema.DROP_STAGED, [(id_,) for id_ in group.unstaged])
        if group.client_id is not None:
            self._connection.execute(schema.SET_META, ("client_id", group.client_id))

    def _forget(self, topics: Iterable[int]) -> None:
        ranges = self._forgotten.copy()  # until the transaction is done
        for topic in topics:
            self._connection.execute(schema.DROP_TOPIC, (topic,))
            self._connection.execute(schema.DROP_PRODUCERS_OF, (topic,))
            self._connection.execute(schema.DROP_SKIPPED_OF, (topic,))
            joined, gone = ranges.add(topic)
            if gone is not None:
                self._connection.execute(schema.DROP_FORGOTTEN, (gone,))
            self._connection.execute(schema.SET_FORGOTTEN, joined)

    def _cursors(self, cursors: Mapping[tuple[int, int], CursorChange]) -> None:
        many = self._connection.executemany
        kept = [(*key, cursor) for key, cursor in cursors.items()]
        ranges = [(*key, start, stop) for *key, cursor in kept for start, stop in cursor.ranges.items()]
        many(schema.DROP_ACKED, [key for *key, cursor in kept if cursor.whole])
        many(schema.SET_CURSOR, [(*key, cursor.floor) for *key, cursor in kept])
        many(schema.DROP_ACKED_AT, [one[:3] for one in ranges if one[3] is None])
        many(schema.SET_ACKED, [one for one in ranges if one[3] is not None])
        self.written += 4096 * len(cursors) + 64 * len(ranges)


def _encoded(record: StagedRecord, batch: Batch) -> tuple[dict[str, Any], Any]:
    """The constants and the body of a batch that is put aside."""
    if not isinstance(batch, ColumnBatch):
        assert isinstance(batch, RowBatch)
        (constants, _), body = encode_rows(batch.rows)
        runs = record.runs
        ends = [*accumulate(rows for _, rows in runs)]
        parts = [batch.rows[end - rows : end] for (_, rows), end in zip(runs, ends, strict=True)]
        latest = [max(row[TIME] for row in part) for part in parts]
        if any(latest):  # they have times of their own
            constants["latest"] = latest
        if len(runs) > 1:
            constants["latest"] = latest
            constants["sizes"] = [sum(len(row[PAYLOAD]) for row in part) for part in parts]
        return constants, body
    (constants, _), body = encode_columns(batch)
    if "time" not in constants:
        constants["latest"] = batch.latest
    return constants, body


def _conflict(topic: int, end: int, base: int) -> StoreConflict:
    return StoreConflict(
        f"Topic {topic} ends at offset {end}, and an append expected {base}. Another broker has written to this store."
    )


def _portions(
    appends: Sequence[Append | Promotion],
) -> Iterator["list[RowsPiece] | ColumnsPieces | Promotions"]:
    """Split what is appended into blocks of a bounded size."""
    if {type(one[1]) for one in appends} == {RowBatch}:  # mostly, and then there may be one for every message
        yield from _row_pieces(cast("Iterable[tuple[int, RowBatch]]", appends))
        return
    for form, alike in groupby(appends, _form):
        if form is Promotion:
            for _, one in groupby(cast("Iterable[Promotion]", alike), attrgetter("staged")):
                yield Promotions(one)
        elif form is RowBatch:
            yield from _row_pieces(cast("Iterable[tuple[int, RowBatch]]", alike))
        else:
            yield from _column_pieces(cast("Iterable[ColumnsPiece]", alike))


def _form(append: Append | Promotion) -> type[object]:
    return Promotion if isinstance(append, Promotion) else type(append.batch)


def _row_pieces(appends: Iterable[tuple[int, RowBatch]]) -> Iterator[list[RowsPiece]]:
    pieces: list[RowsPiece] = []
    rows = size = 0
    for topic, batch in appends:
        whole = len(batch.rows[0][PAYLOAD]) if batch.count == 1 else batch.size
        if rows + batch.count < BLOCK_ROWS and size + whole < BLOCK_BYTES:
            pieces.append((topic, batch, whole))
            rows += batch.count
            size += whole
            continue
        start = batch.base
        for offset, row in enumerate(batch.rows, batch.base):
            rows += 1
            size += len(row[PAYLOAD])
            if rows >= BLOCK_ROWS or size >= BLOCK_BYTES:
                piece = batch.cut(start, offset + 1)
                pieces.append((topic, piece, piece.size))
                yield pieces
                pieces, rows, size, start = [], 0, 0, offset + 1
        if start < batch.end:
            piece = batch.cut(start, batch.end)
            pieces.append((topic, piece, piece.size))
    if pieces:
        yield pieces


def _column_pieces(appends: Iterable[ColumnsPiece]) -> Iterator[ColumnsPieces]:
    pieces = ColumnsPieces()
    rows = size = 0
    for topic, batch in _parts(appends):
        rows += batch.count
        size += batch.size
        large = batch.count >= SMALL or bool(batch.ahead)
        if pieces and (large or rows > SHARED_ROWS or size > SHARED_BYTES):
            yield pieces
            pieces, rows, size = ColumnsPieces(), batch.count, batch.size
        pieces.append((topic, batch))
        if large:
            yield pieces
            pieces, rows, size = ColumnsPieces(), 0, 0
    if pieces:
        yield pieces


def _parts(appends: Iterable[ColumnsPiece]) -> Iterator[ColumnsPiece]:
    """The batches of one topic that stand side by side as one, or as several of a bounded size. What was written ahead
    has its parts already."""
    for (topic, ahead), alike in groupby(appends, lambda one: (one[0], bool(one[1].ahead))):
        batches = [batch for _, batch in alike]
        for batch in batches if ahead else joined(batches):
            for part in parts(batch):
                yield topic, part


def parts(batch: ColumnBatch) -> list[ColumnBatch]:
    """What becomes a block each."""
    made = cast("list[ColumnBatch]", batch.parts(COLUMNS_BYTES))
    for part, written in zip(made, batch.ahead, strict=False):
        part.ahead = (written,)
    return made
