"""Giving space back as messages are collected, a portion at a time."""

import sqlite3

from stafeta.store.sqlite import schema
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.writer import Writer

TOPICS = 2000  # looked at in one portion
RUNS = 20_000  # deleted in one portion
PAGES = 2_000  # returned to the file system in one portion
SPARE = 4  # free pages are left for new messages up to a fourth of the file


class Sweeper:
    """Used by the writer's thread alone."""

    def __init__(self, connection: sqlite3.Connection, recent: RecentRuns, writer: Writer) -> None:
        self._connection = connection
        self._recent = recent
        self._writer = writer
        self.firsts: dict[int, int] = {}  # topics in which something may lie below the first offset kept

    def sweep(self) -> bool:
        self._drop_runs()
        return self._return_pages() or bool(self.firsts)

    def _drop_runs(self) -> None:
        if not self.firsts:
            return
        left = RUNS
        blocks: set[int] = set()
        swept: dict[int, int] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for topic in list(self.firsts)[:TOPICS]:
                first = self.firsts[topic]
                dropped = self._connection.execute(schema.DROP_RUNS, (topic, first, left)).fetchall()
                blocks.update(block for (block,) in dropped)
                left -= len(dropped)
                if left <= 0:
                    break
                swept[topic] = first
            self._connection.executemany(schema.DROP_BLOCK_IF_FREE, [(block,) for block in sorted(blocks)])
            if blocks:
                self._connection.execute(schema.SET_META, ("position", self._writer.position))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._writer.written += 4096 * len(blocks)
        for topic, first in swept.items():
            self._recent.release(topic, first)
            if self.firsts[topic] == first:
                del self.firsts[topic]

    def _return_pages(self) -> bool:
        free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        spare = max(PAGES, pages // SPARE)
        if free <= spare:
            return False
        # Stepping through the statement is what frees the pages.
        self._connection.execute(f"PRAGMA incremental_vacuum({min(PAGES, free - spare)})").fetchall()
        self._writer.written += 4096 * PAGES
        return bool(free - spare > PAGES)
