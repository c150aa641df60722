"""One group, one transaction."""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import orjson

from stafeta.errors import StoreConflict, StoreDamaged
from stafeta.message import PAYLOAD, TIME, Row, RowBatch
from stafeta.store.blocks import Run, checksum, encode_rows, make_header
from stafeta.store.port import Append, Group, Promotion
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.recent import RecentRuns

BLOCK_ROWS = 1 << 15
BLOCK_BYTES = 1 << 20  # of payload; a larger block makes a topic that has little in it dear to read

RowsPiece: TypeAlias = tuple[int, RowBatch, int]  # topic, messages, bytes of payload


class Writer:
    """Used by the writer's thread alone."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        recent: RecentRuns,
        checkpoint: Checkpoint,
        names: dict[int, str],
        ends: dict[int, tuple[int, int]],
        meta: dict[str, int],
    ) -> None:
        self._connection = connection
        self._recent = recent
        self._checkpoint = checkpoint
        self._names = names  # shared with the reader, which looks names up in it
        self._ends = ends
        self.last_block = meta["block"]
        self.position = meta.get("position", 1)
        self.written = 0  # bytes since it was last set to 0

    def commit(self, group: Group) -> None:
        ends: dict[int, tuple[int, int]] = {}
        if group.checkpoint and not (self._checkpoint.ready or self._checkpoint.under_way):
            self._checkpoint.begin(self.last_block)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._stage(group)
            blocks = list(self._blocks(group, ends))
            self._state(group)
            if group.checkpoint:
                slice_ = self._checkpoint.finish(group.producers, max(self.position, group.position))
            else:
                slice_ = self._checkpoint.write_slice()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        for topic in group.topics.values():
            self._names[topic.id] = topic.name
            self._ends.setdefault(topic.id, (topic.next, 0))
        self._ends.update(ends)
        self.position = max(self.position, group.position)
        if blocks:
            self.last_block = blocks[-1][0]
        for block, runs in blocks:
            self._recent.add(block, runs)
        self._checkpoint.wrote(slice_)
        if group.checkpoint:
            self._checkpoint.finished()
        self._checkpoint.begin_if_due(self.last_block)
        self.written += 4096 * slice_

    def _blocks(self, group: Group, ends: dict[int, tuple[int, int]]) -> Iterator[tuple[int, list[Run]]]:
        block = self.last_block
        for portion in _portions(group.appends):
            block += 1
            if isinstance(portion, Promotion):
                yield block, [self._promote(block, portion, ends)]
            else:
                yield block, self._add_rows(block, portion, ends)

    def _add_rows(self, block: int, pieces: list[RowsPiece], ends: dict[int, tuple[int, int]]) -> list[Run]:
        # Inlined where it can be: with many topics this is done for every message.
        rows: list[Row] = []
        runs: list[Run] = []
        known = self._ends
        for topic, batch, size in pieces:
            base, count = batch.base, batch.count
            end, total = ends.get(topic) or known.get(topic) or (base, 0)
            if end != base:
                raise _conflict(topic, end, base)
            total += size
            ends[topic] = (base + count, total)
            runs.append(Run(topic, base, count, block, len(rows), batch.rows[-1][TIME], total))
            rows += batch.rows
        constants, body = encode_rows(rows)
        self._insert(block, len(rows), constants, runs, body, zlib.crc32(body))
        return runs

    def _promote(self, block: int, promotion: Promotion, ends: dict[int, tuple[int, int]]) -> Run:
        found = self._connection.execute(schema.GET_STAGED, (promotion.staged,)).fetchone()
        if found is None:
            raise StoreDamaged(f"Staged batch {promotion.staged} is not in the store any more.")
        producer, counter, count, size, constants, body, body_checksum = found
        end, total = ends.get(promotion.topic) or self._ends.get(promotion.topic) or (promotion.base, 0)
        if end != promotion.base:
            raise _conflict(promotion.topic, end, promotion.base)
        size += total
        ends[promotion.topic] = (promotion.base + count, size)
        run = Run(promotion.topic, promotion.base, count, block, 0, promotion.time, size)
        told = orjson.loads(constants) | {
            "position": promotion.position,
            "producer": producer,
            "counter": counter,
        }
        if told.get("time") == 0:
            told["time"] = promotion.time
        self._insert(block, count, told, [run], body, body_checksum)
        self._connection.execute(schema.DROP_STAGED, (promotion.staged,))
        return run

    def _insert(
        self,
        block: int,
        rows: int,
        constants: dict[str, Any],
        runs: list[Run],
        body: bytes,
        body_checksum: int,
    ) -> None:
        header = make_header(rows, constants, [(r[0], r[1], r[2], r[5], r[6]) for r in runs])
        self._connection.execute(schema.ADD_BLOCK, (block, header, body, checksum(header, body_checksum)))
        self.written += len(body) + len(header) + 4096

    def _stage(self, group: Group) -> None:
        for staged, batch in group.staged:
            assert isinstance(batch, RowBatch)
            constants, body = encode_rows(batch.rows)
            row = (*staged, orjson.dumps(constants), body, zlib.crc32(body))
            self._connection.execute(schema.ADD_STAGED, row)
            self.written += len(body)

    def _state(self, group: Group) -> None:
        many = self._connection.executemany
        many(schema.SET_TOPIC, group.topics.values())
        for id_, subscription in group.subscriptions.items():
            if subscription is None:
                self._connection.execute(schema.DROP_SUBSCRIPTION, (id_,))
                self._connection.execute(schema.DROP_CURSORS_OF, (id_,))
            else:
                self._connection.execute(schema.SET_SUBSCRIPTION, subscription)
        if group.cursors:
            gone = [key for key, cursor in group.cursors.items() if cursor is None]
            kept = [
                (*key, cursor.floor, orjson.dumps(cursor.above).decode())
                for key, cursor in group.cursors.items()
                if cursor is not None
            ]
            many(schema.SET_CURSOR, kept)
            many(schema.DROP_CURSOR, gone)
            self.written += 4096 * len(group.cursors)
        many(schema.SET_DONE, group.transactions.items())
        many(schema.DROP_STAGED, [(id_,) for id_ in group.unstaged])
        if group.client_id is not None:
            self._connection.execute(schema.SET_META, ("client_id", group.client_id))


def _conflict(topic: int, end: int, base: int) -> StoreConflict:
    return StoreConflict(
        f"Topic {topic} ends at offset {end}, and an append expected {base}. Another broker has written to this store."
    )


def _portions(appends: Iterable[Append | Promotion]) -> Iterator[list[RowsPiece] | Promotion]:
    """Split what is appended into blocks of a bounded size."""
    pieces: list[RowsPiece] = []
    rows = size = 0
    for append in appends:
        if isinstance(append, Promotion):
            if pieces:
                yield pieces
            pieces, rows, size = [], 0, 0
            yield append
            continue
        topic, batch = append
        assert isinstance(batch, RowBatch)
        whole = batch.size
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
