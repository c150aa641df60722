"""Giving space back as messages are collected, a portion at a time.

1. Whether a block may go is decided by what its header says, which has a checksum, and by the first offset that each of
   its topics keeps: by nothing that is counted elsewhere. One whose header is damaged stays.
2. A block is looked at once when the index covers it, and then whenever the index lets go of something in it. Until it
   is covered it stays: it is all that remembers its producers' counters.
3. Of a block that many topics share it is remembered what keeps it: it is not looked at again before that has gone.
4. A portion ends when so many bytes of headers were looked at that others should get their turn.
5. After a start every header is looked at first, whether topics are without gaps and segments known. Where something is
   missing the log says so, and no segment goes: what nobody seems to need may be all there is of it.
"""

import random
import sqlite3
from array import array
from collections.abc import Callable

from stafeta.errors import StoreDamaged
from stafeta.store.blocks import has_checksum, read_header, runs_of
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.continuity import Continuity, Gap
from stafeta.store.sqlite.forgotten import Firsts
from stafeta.store.sqlite.pages import blocks as blocks_of
from stafeta.store.sqlite.pages import from_first, pages
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.seals import opened
from stafeta.store.sqlite.segments import Segments
from stafeta.store.sqlite.writer import Writer

RUNS = 64  # of a topic that are let go of before their blocks are looked at
BUDGET = 256 << 10  # bytes of headers, or what costs as much, after which a portion ends
LOOK = 256  # bytes that looking for a topic or block costs at least
BLOCKS = 32  # read together after a checkpoint
SHARED = 16  # runs from which on it is remembered what keeps a block
KEEPERS = 1 << 16  # of so many blocks
PAGES = 500  # returned to the file system in one portion
SPARE = 256  # free pages are left for new messages: this many, or a fourth of the file


class _Portion:
    """What one call of `sweep` has done, and how much it may still do."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.swept: set[int] = set()  # topics of which nothing released is left in the index
        self.seen: set[int] = set()  # blocks that were looked at: what topics keep does not change meanwhile
        self.gone = 0  # blocks that were dropped

    def over(self) -> bool:
        return self.left <= 0


def live_segments(connection: sqlite3.Connection) -> set[int]:
    """Those in which something lies."""
    return {segment for (segment,) in connection.execute(schema.LIVE_SEGMENTS)}


class Sweeper:
    """Used by the writer's thread alone."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        checkpoint: Checkpoint,
        recent: RecentRuns,
        writer: Writer,
        segments: Segments,
        firsts: Firsts,
        looked_at: int,
        check: Callable[[int], None],
        continuity: Continuity,
        say: Callable[[str], None],
    ) -> None:
        """`firsts` are the first offsets that topics keep; `check` raises StoreDamaged where a block is damaged;
        `continuity` is of what is stored as it starts; `say` logs what is damaged."""
        self._segments = segments
        self._connection = connection
        self._checkpoint = checkpoint
        self._recent = recent
        self._writer = writer
        self._firsts = firsts
        self._looked_at = looked_at  # the last block that was looked at after its checkpoint
        self._check = check
        self._say = say
        # By block: topic and end of a run because of which it stays.
        self._keepers: dict[int, tuple[int, int]] = {}
        self._seen = 0  # the last block when it was last called
        # Until all that was there at the start was looked at.
        self._continuity: Continuity | None = continuity
        self._verify_up_to = writer.last_block
        self._verified = 0  # the last block that was
        self._found: set[int] = set()  # segments that headers name
        self._damaged = 0  # how much was found
        # Topics in which something may lie below the first offset kept.
        self.released = {topic for topic, first in firsts.items() if first > 1}
        if firsts.forgotten:
            indexed = connection.execute(schema.INDEXED_TOPICS)
            self.released.update(topic for (topic,) in indexed if topic in firsts.forgotten)

    def sweep(self) -> bool:
        if self._continuity is not None:
            self._verify(self._continuity)
            return True
        idle = self._writer.last_block == self._seen
        self._drop()
        self._checkpoint.begin_if_due(self._writer.last_block)
        pages_left = self._return_pages()
        self._seen = self._writer.last_block
        if not (self._more or self._damaged):
            self._segments.drop_except(live_segments(self._connection))
        # Returning pages moves others about; while messages come in, that has time.
        return self._more or self._checkpoint.under_way or (pages_left and idle)

    def _verify(self, continuity: Continuity) -> None:
        left = BUDGET
        while left > 0 and self._verified < self._verify_up_to:
            found = self._connection.execute(
                schema.HEADERS_BETWEEN, (self._verified, self._verify_up_to, BLOCKS)
            ).fetchall()
            for block, header, _, segment in found:
                left -= len(header) + LOOK
                self._verified = block
                try:
                    said = read_header(block, header)
                except StoreDamaged:
                    self._damaged += 1  # loading, or a reader, tells it
                    continue
                if said.get("segment", segment) != segment:
                    self._tell(f"stored batch {block} says that it lies in segment {said.get('segment')}")
                if segment is not None:
                    self._found.add(segment)
                for gap in continuity.add(runs_of(block, header)):
                    self._tell_gap(gap)
            if len(found) < BLOCKS:
                self._verified = self._verify_up_to
        if self._verified >= self._verify_up_to:
            for gap in continuity.finish():
                self._tell_gap(gap)
            if not self._found <= live_segments(self._connection):
                self._tell("the index of segments does not have all of them")
            self._continuity = None

    def _tell_gap(self, gap: Gap) -> None:
        what = "are stored twice" if gap.twice else "are missing"
        self._tell(f"messages {gap.start} to {gap.stop - 1} of topic {gap.topic} {what}")

    def _tell(self, sentence: str) -> None:
        self._damaged += 1
        self._say(f"the store is damaged: {sentence}")

    @property
    def _more(self) -> bool:
        return bool(self.released) or self._looked_at < self._checkpoint.covered

    def _drop(self) -> None:
        if not (self._more or self._checkpoint.under_way):
            return
        portion = _Portion(BUDGET)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._drop_released(portion)
            looked_at = self._look_further(portion)
            slice_ = self._checkpoint.write_slice()
            if portion.gone:
                self._connection.execute(schema.SET_META, ("position", self._writer.position))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._looked_at = looked_at
        self._checkpoint.wrote(slice_)
        self._writer.written += 4096 * (len(portion.seen) + portion.gone + slice_)
        for topic in portion.swept:
            self._recent.release(topic, self._firsts.kept_from(topic))
        self.released -= portion.swept

    def _drop_released(self, portion: _Portion) -> None:
        """Takes what topics let go of out of the index, and looks at the blocks that it was in."""
        for topic in self.released:
            while not portion.over():
                portion.left -= LOOK
                blocks = self._drop_pages(topic, self._firsts.kept_from(topic), RUNS)
                if len(blocks) < RUNS:
                    portion.swept.add(topic)
                for block in blocks:
                    self._look_at(block, portion)
                if topic in portion.swept:
                    break
            if portion.over():
                break

    def _drop_pages(self, topic: int, first: int, limit: int) -> list[int]:
        """Take runs wholly below `first` out of the index; returns the block of each, fewer than the limit only where
        none is left."""
        blocks: list[int] = []
        for row in self._connection.execute(schema.PAGES_BELOW, (topic, first, limit)).fetchall():
            values = opened("page", row)
            if values is None:
                continue
            _, base, end, _, packed = values
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

    def _look_at(self, block: int, portion: _Portion) -> None:
        """Drops a block that the index has let go of, unless it is wanted."""
        if block in portion.seen or block > self._looked_at:
            return
        portion.seen.add(block)
        portion.left -= LOOK
        keeper = self._keepers.get(block)
        if keeper is not None and self._keeps(*keeper):
            return
        found = self._connection.execute(schema.GET_HEADER, (block,)).fetchone()
        if found is not None:
            self._drop_unless_wanted(block, found[0], portion)

    def _look_further(self, portion: _Portion) -> int:
        """Looks at blocks that the index has come to cover; returns the last of them."""
        covered, last = self._checkpoint.covered, self._looked_at
        while last < covered and not portion.over():
            found = self._connection.execute(schema.HEADERS_BETWEEN, (last, covered, BLOCKS)).fetchall()
            for block, header, body, segment in found:
                if portion.over():
                    break
                if not has_checksum(header):
                    portion.left -= body if segment is None else BUDGET
                self._drop_unless_wanted(block, header, portion)
                last = block
            else:
                last = last if len(found) == BLOCKS else covered
        if last > self._looked_at:
            self._connection.execute(schema.SET_META, ("looked_at", last))
        return last

    def _drop_unless_wanted(self, block: int, header: bytes, portion: _Portion) -> None:
        portion.left -= len(header) + LOOK
        try:
            if not has_checksum(header):
                self._check(block)
            keepers = [run for run in runs_of(block, header) if self._keeps(run.topic, run.end)]
        except StoreDamaged:
            return
        self._keepers.pop(block, None)
        if not keepers:
            self._connection.execute(schema.DROP_BLOCK, (block,))
            portion.gone += 1
        elif len(keepers) >= SHARED and len(self._keepers) < KEEPERS:
            # Any of them: whatever the order in which topics let go of theirs, a block is looked at a few times only.
            keeper = random.choice(keepers)  # noqa: S311
            self._keepers[block] = keeper.topic, keeper.end

    def _keeps(self, topic: int, end: int) -> bool:
        return end > self._firsts.kept_from(topic)

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
