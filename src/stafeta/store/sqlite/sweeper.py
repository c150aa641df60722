"""Giving space back as messages are collected, a portion at a time."""

import sqlite3
from array import array
from collections import Counter

from stafeta.store.sqlite import schema
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.pages import blocks as blocks_of
from stafeta.store.sqlite.pages import from_first, pages
from stafeta.store.sqlite.segments import Segments
from stafeta.store.sqlite.writer import Writer

TOPICS = 2000  # looked at in one portion
RUNS = 20_000  # deleted in one portion
PAGES = 500  # returned to the file system in one portion
SPARE = 256  # free pages are left for new messages: this many, or a fourth of the file


def live_segments(connection: sqlite3.Connection) -> set[int]:
    """Those in which something lies."""
    return {segment for (segment,) in connection.execute(schema.LIVE_SEGMENTS)}


class Sweeper:
    """Used by the writer's thread alone."""

    def __init__(
        self, connection: sqlite3.Connection, checkpoint: Checkpoint, writer: Writer, segments: Segments
    ) -> None:
        self._segments = segments
        self._connection = connection
        self._checkpoint = checkpoint
        self._writer = writer
        self._seen = 0  # the last block when it was last called
        self.firsts: dict[int, int] = {}  # topics in which something may lie below the first offset kept

    def sweep(self) -> bool:
        idle = self._writer.last_block == self._seen
        self._drop_runs()
        self._checkpoint.begin_if_due(self._writer.last_block)
        pages_left = self._return_pages()
        self._seen = self._writer.last_block
        if not self.firsts:
            self._segments.drop_except(live_segments(self._connection))
        # Returning pages moves others about; while messages come in, that has time.
        return bool(self.firsts) or self._checkpoint.under_way or (pages_left and idle)

    def _drop_runs(self) -> None:
        if not self.firsts and not self._checkpoint.under_way:
            return
        left = RUNS
        blocks: Counter[int] = Counter()
        swept: dict[int, int] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for topic in list(self.firsts)[:TOPICS]:
                first = self.firsts[topic]
                dropped = self._drop_pages(topic, first, left)
                blocks.update(dropped)
                left -= len(dropped)
                if left <= 0:
                    break
                swept[topic] = first
            self._drop_blocks(blocks)
            slice_ = self._checkpoint.write_slice()
            if blocks:
                self._connection.execute(schema.SET_META, ("position", self._writer.position))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._checkpoint.wrote(slice_)
        self._writer.written += 4096 * len(blocks) + 4096 * slice_
        for topic, first in swept.items():
            self._checkpoint.released(topic, first)
            if self.firsts[topic] == first:
                del self.firsts[topic]

    def _drop_pages(self, topic: int, first: int, limit: int) -> list[int]:
        """Take runs wholly below `first` out of the index; returns the block of each."""
        blocks: list[int] = []
        for base, end, packed in self._connection.execute(
            schema.PAGES_BELOW, (topic, first, limit)
        ).fetchall():
            runs = array("q", packed)
            kept = runs[:0] if end <= first else from_first(runs, first)
            if len(kept) == len(runs):
                break
            blocks += blocks_of(runs[: len(runs) - len(kept)])
            self._connection.execute(schema.DROP_PAGE, (topic, base))
            self._connection.executemany(schema.ADD_PAGE, pages(topic, kept))
            if len(blocks) >= limit:
                break
        return blocks

    def _drop_blocks(self, blocks: Counter[int]) -> None:
        """Take so many runs from each block, and drop those of which none is left."""
        for block, count in sorted(blocks.items()):
            left = self._connection.execute(schema.TAKE_SHARE, (block, count)).fetchall()
            if left and left[0][0] <= 0:
                self._connection.execute(schema.DROP_SHARE, (block,))
                self._connection.execute(schema.DROP_BLOCK, (block,))

    def _return_pages(self) -> bool:
        free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        spare = max(SPARE, pages // 4)
        if free <= spare:
            return False
        # As a script: it frees a page a step, and a plain `execute` takes one step where there are no columns.
        self._connection.executescript(f"PRAGMA incremental_vacuum({min(PAGES, free - spare)})")
        self._writer.written += 4096 * PAGES
        return bool(free - spare > PAGES)
