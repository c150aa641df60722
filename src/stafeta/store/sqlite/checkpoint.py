"""The checkpoint: moves the index of recent runs from memory to disk, a slice with each commit.

The index is in topic order and the log is not, so writing it touches a place for each topic; waiting until topics have
several runs makes that bearable, and slices keep a commit from waiting for all of it. What a crash leaves of an
unfinished checkpoint is deleted at the next start.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from stafeta.store.blocks import Run
from stafeta.store.port import ProducerRecord
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.pages import pack
from stafeta.store.sqlite.recent import RecentRuns

SLICE = 2000  # runs written with one commit
PER_TOPIC = 8  # runs a topic should have on average
SECONDS = 30.0  # after which it is done in any case: until then no space is given back


_block = attrgetter("block")


class Checkpoint:
    """Used by the writer's thread alone, but for `ready`."""

    def __init__(self, connection: sqlite3.Connection, recent: RecentRuns, rows: int) -> None:
        self._connection = connection
        self._recent = recent
        self._rows = rows
        self._runs: list[Run] | None = None  # what it writes, while one is under way
        self._written = 0
        self._last = 0  # the last block it covers
        self._released: dict[int, int] = {}  # by topic, the first offset kept, where it moved since it began
        self._since = time.monotonic()

    @property
    def ready(self) -> bool:
        """True when only the producers' states are missing."""
        return self._runs is not None and self._written >= len(self._runs)

    @property
    def under_way(self) -> bool:
        return self._runs is not None and not self.ready

    def begin_if_due(self, block: int) -> None:
        if self._runs is not None:
            return
        rows, topics = self._recent.due
        full = rows >= max(self._rows, PER_TOPIC * topics)
        if full or (rows and time.monotonic() - self._since >= SECONDS):
            self.begin(block)

    def begin(self, block: int) -> None:
        self._runs = self._recent.begin()
        self._written = 0
        self._last = block
        self._released = {}

    def write_slice(self, limit: int = SLICE) -> int:
        """Call within a transaction, and `wrote` with the result once it is committed."""
        if self._runs is None:
            return 0
        runs = self._runs[self._written : self._written + limit]
        if runs:
            self._connection.executemany(schema.ADD_PAGE, pack(self._kept(runs)))
            self._connection.execute(schema.SET_META, ("unfinished", 1))
        return len(runs)

    def wrote(self, count: int) -> None:
        self._written += count

    def _kept(self, runs: list[Run]) -> list[Run]:
        if not self._released:
            return runs
        return [run for run in runs if run.end > self._released.get(run.topic, 0)]

    def released(self, topic: int, first: int) -> None:
        self._recent.release(topic, first)
        if self._runs is not None:
            self._released[topic] = first

    def finish(self, producers: Iterable[ProducerRecord], position: int) -> int:
        """The last step, within a transaction; call `wrote` and `finished` once it is committed."""
        assert self._runs is not None
        many = self._connection.executemany
        written = self.write_slice(len(self._runs))
        shares = Counter(map(_block, self._kept(self._runs)))
        many(schema.SET_SHARE, shares.items())
        free = [(block,) for block in self._recent.blocks if block not in shares]
        many(schema.DROP_BLOCK, free)
        many(schema.SET_PRODUCER, producers)
        many(schema.SET_META, [("checkpoint", self._last), ("position", position), ("unfinished", 0)])
        return written

    def finished(self) -> None:
        self._recent.finish()
        self._runs = None
        self._since = time.monotonic()
