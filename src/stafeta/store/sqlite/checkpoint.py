"""The checkpoint: moves the index of recent runs from memory to disk, a slice with each commit.

The index is in topic order and the log is not, so writing it touches a place for each topic; waiting until topics have
several runs makes that bearable, and slices keep a commit from waiting for all of it. What a crash leaves of an
unfinished checkpoint is deleted at the next start.
"""

import sqlite3
import time
from collections.abc import Iterable

from stafeta.store.port import ProducerRecord
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.forgotten import Firsts
from stafeta.store.sqlite.pages import Runs, count, from_first, pages
from stafeta.store.sqlite.recent import RecentRuns

SLICE = 2000  # runs written with one commit, or a few more
PER_TOPIC = 8  # rows that a topic should have on average
SECONDS = 30.0  # after which it is done in any case: until then no space is given back


class Checkpoint:
    """Used by the writer's thread alone, but for `ready`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        recent: RecentRuns,
        rows: int,
        firsts: Firsts,
        covered: int,
    ) -> None:
        self._connection = connection
        self._recent = recent
        self._rows = rows
        self._firsts = firsts  # by topic, the first offset kept
        self.covered = covered  # the last block that the index on disk has
        self._topics: list[tuple[int, Runs]] | None = None  # what it writes, while one is under way
        self._written = 0  # of these topics
        self._last = 0  # the last block it covers
        self._since = time.monotonic()

    @property
    def ready(self) -> bool:
        """True when only the producers' states are missing."""
        return self._topics is not None and self._written >= len(self._topics)

    @property
    def under_way(self) -> bool:
        return self._topics is not None and not self.ready

    def begin_if_due(self, block: int) -> None:
        if self._topics is not None:
            return
        rows, topics = self._recent.due
        full = rows >= max(self._rows, PER_TOPIC * topics)
        if full or (rows and time.monotonic() - self._since >= SECONDS):
            self.begin(block)

    def begin(self, block: int) -> None:
        self._topics = self._recent.begin()
        self._written = 0
        self._last = block

    def write_slice(self, limit: int | None = None) -> int:
        """Call within a transaction, and `wrote` with the result once it is committed."""
        limit = SLICE if limit is None else limit
        if not self.under_way:
            return 0
        assert self._topics is not None
        topics = 0
        for topic, runs in self._topics[self._written :]:
            kept = self._kept(topic, runs)
            self._connection.executemany(schema.ADD_PAGE, pages(topic, kept))
            topics += 1
            limit -= count(runs)
            if limit <= 0:
                break
        self._connection.execute(schema.SET_META, ("unfinished", 1))
        return topics

    def wrote(self, topics: int) -> None:
        self._written += topics

    def _kept(self, topic: int, runs: Runs) -> Runs:
        return from_first(runs, self._firsts.kept_from(topic))

    def finish(
        self, producers: Iterable[ProducerRecord], forgotten: Iterable[tuple[int, str]], position: int
    ) -> int:
        """The last step, within a transaction; call `wrote` and `finished` once it is committed."""
        assert self._topics is not None
        many = self._connection.executemany
        written = self.write_slice(1 << 62)
        many(schema.SET_PRODUCER, producers)
        many(schema.DROP_PRODUCER, forgotten)
        many(schema.SET_META, [("checkpoint", self._last), ("position", position), ("unfinished", 0)])
        return written

    def finished(self) -> None:
        self._recent.finish()
        self.covered = self._last
        self._topics = None
        self._since = time.monotonic()
