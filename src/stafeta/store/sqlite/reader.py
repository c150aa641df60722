"""Finding messages: from offset to run, from run to block, from block to batch."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from stafeta.columns import Block, ColumnBatch, joined
from stafeta.errors import StoreDamaged
from stafeta.message import PAYLOAD, TIME, Batch
from stafeta.store.blocks import Run, batch_of, decode, verified
from stafeta.store.sqlite import schema, segments
from stafeta.store.sqlite.pages import RUNS, opened_page
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.seals import opened

CACHE = 32 << 20
RUN = 300  # bytes that a run takes in it
AHEAD = 256  # runs of a topic that are looked up together
WHOLE = 2 << 20  # bytes up to which a batch is handed out as it is, however little was asked for


def load(
    folder: Path,
    id_: int,
    header: bytes,
    content: bytes,
    checksum: int,
    segment: int | None,
    put_right: Callable[[int], None] = lambda id_: None,
) -> tuple[Block, list[Run]]:
    """A block as it was written; StoreDamaged where it is not. `put_right` is called where that took a flipped bit."""
    stored = header, segments.read(folder, id_, segment, content)
    whole = verified(id_, *stored, checksum)
    if whole != stored:
        put_right(id_)
    header, body = whole
    return decode(id_, header, body)


def payload_bytes(block: Block) -> int:
    """About how many bytes its payloads take in memory. (Arrow's own `nbytes` takes twenty times as long.)"""
    data = block.columns[PAYLOAD].buffers()[2]
    return 4 * block.rows + (0 if data is None else int(data.size))


def check_block(folder: Path, connection: sqlite3.Connection, block: int) -> None:
    """Raises StoreDamaged where a block is not as it was written."""
    row = connection.execute(schema.GET_BLOCK, (block,)).fetchone()
    if row is not None:
        load(folder, block, *row)


class Reader:
    """Used by the reader's thread alone."""

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        recent: RecentRuns,
        names: Mapping[int, str],
        firsts: Mapping[int, int],
        ends: Mapping[int, tuple[int, int, int]],
        skipped: Mapping[int, Sequence[tuple[int, int]]],
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._recent = recent
        self._names = names
        self._firsts = firsts  # of each topic the first offset kept: what lies below may be gone
        self._ends = ends  # of each topic the next offset, and more
        self._skipped = skipped  # of each topic ranges that are damaged, and passed over
        self._cache: OrderedDict[int, tuple[Block, frozenset[Run], int]] = OrderedDict()  # and their sizes
        self._cached = 0

    def read(self, topic: int, start: int, stop: int, size: int) -> Sequence[Batch]:
        batches: list[ColumnBatch] = []
        stop = min(stop, self.end_of(topic))
        try:
            self._read(topic, start, stop, size, batches)
        except StoreDamaged:
            if (
                not batches
            ):  # else what comes before the damage is whole, and the next read raises for the damage
                raise
        return joined(batches)

    def _read(self, topic: int, start: int, stop: int, size: int, batches: list[ColumnBatch]) -> None:
        if size <= 0:
            return
        for run in self.runs(topic, start, stop):
            batch = self.batch(run, start, stop)
            if batch is None:
                continue
            if batch.size > max(size, WHOLE):  # a reader of many topics wants little of each
                batch = batch.cut(batch.base, batch.base + max(batch.count * size // batch.size, 1))
            batches.append(batch)
            size -= batch.size
            if size <= 0 or batch.end < min(run.end, stop):
                return

    def runs(self, topic: int, start: int, stop: int, ahead: int = AHEAD) -> Iterator[Run]:
        """The runs with these offsets, in order, of which about `ahead` are looked up together. Raises StoreDamaged
        where the index lacks some."""
        while (start := self._past_skipped(topic, start)) < stop:
            # In this order: a checkpoint between the two only moves runs from the first to the second.
            recent = self._recent.find(topic, start, ahead)
            limit = min(stop, recent[0].base) if recent else stop
            runs = self._runs(topic, start, limit, ahead) or recent
            if not runs or runs[0].base > start:
                start = self._after_gap(topic, start, min(runs[0].base, stop) if runs else stop)
                continue
            for run in runs:
                if run.base > start:
                    break  # there is a gap: it is looked at before what comes after it
                yield run
                start = run.end
                if start >= stop or self._past_skipped(topic, start) != start:
                    break

    def batch(self, run: Run, start: int, stop: int) -> ColumnBatch | None:
        """The messages of a run between these offsets; None where they were collected since it was found."""
        block = self._block(run, start)
        if block is None:
            return None
        batch = self._batch(block, run)
        return batch if start <= run.base and run.end <= stop else batch.cut(start, stop)

    def end_of(self, topic: int) -> int:
        """The offset after the last one."""
        return self._ends.get(topic, (0,))[0]

    def _past_skipped(self, topic: int, start: int) -> int:
        for first, end in self._skipped.get(topic, ()):
            if first <= start < end:
                start = end
        return start

    def _after_gap(self, topic: int, start: int, stop: int) -> int:
        """Where to go on, since the index has nothing of these offsets: they were collected, or it is damaged."""
        first = self._firsts.get(topic, 0)
        if start < first:
            return first
        raise self._unreadable(
            topic,
            start,
            stop,
            "the store's index does not have them; `stafeta check --repair` may bring them back",
        )

    def _unreadable(self, topic: int, start: int, stop: int, why: str) -> StoreDamaged:
        name = self._names[topic]
        which = f"message {start}" if stop == start + 1 else f"messages {start} to {stop - 1}"
        return StoreDamaged(
            f"The {which} of {name!r} cannot be read: {why.removesuffix('.')}. To go on past them: "
            f"`stafeta skip {name} {start}-{stop - 1}`.",
            name,
            start,
            stop,
        )

    def _batch(self, block: Block, run: Run) -> ColumnBatch:
        return batch_of(self._names[run.topic], block, run)

    def _runs(self, topic: int, start: int, limit: int, ahead: int) -> list[Run]:
        if start >= limit:
            return []
        wanted = (topic, topic, start, start, limit, -(-ahead // RUNS))
        pages = self._connection.execute(schema.PAGES_FROM, wanted)
        runs = [run for page in pages for run in opened_page(page)]
        return [run for run in runs if run.end > start and run.base < limit]

    def _block(self, run: Run, start: int) -> Block | None:
        """The block of a run; None where it was collected since the run was found, and nobody waits for it."""
        try:
            block, runs = self._cached_block(run)
            if run not in runs:
                raise StoreDamaged(f"stored batch {run.block} does not have them, as the store's index says")
        except StoreDamaged as error:
            if run.end <= self._firsts.get(run.topic, 0):
                return None
            raise self._unreadable(run.topic, max(start, run.base), run.end, str(error)) from None
        return block

    def _cached_block(self, run: Run) -> tuple[Block, frozenset[Run]]:
        cached = self._cache.get(run.block)
        if cached is not None:
            self._cache.move_to_end(run.block)
            return cached[:2]
        try:
            row = self._connection.execute(schema.GET_BLOCK, (run.block,)).fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            row = None
        if row is None:
            raise StoreDamaged(f"stored batch {run.block} is missing")
        block, found = load(self._folder, run.block, *row)
        runs = frozenset(found)  # there may be thousands, each of which is looked for
        size = payload_bytes(block) + RUN * len(runs)
        self._cache[run.block] = block, runs, size
        self._cached += size
        while self._cached > CACHE and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1][2]
        return block, runs

    def verify(self, staged: Sequence[int]) -> None:
        """Raises StoreDamaged where one of these staged batches is not as it was written."""
        for one in staged:
            self._verify(one)

    def _verify(self, staged: int) -> None:
        row = self._connection.execute(schema.GET_STAGED, (staged,)).fetchone()
        if row is None:
            return  # it is not there any more, which whoever commits it finds out
        values = opened("staged", row)
        if values is not None:
            (content,) = self._connection.execute(schema.GET_STAGED_BODY, (staged,)).fetchone()
            *_, segment, checksum = values
            with suppress(StoreDamaged):
                if crc32(segments.read(self._folder, staged, segment, content)) == checksum:
                    return
        raise StoreDamaged(
            f"Staged batch {staged} is damaged. Abort its transaction, and stage and commit it again."
        )

    def horizon(self, topic: int, before: int | None, size: int | None) -> int:
        try:
            return self._horizon(topic, before, size)
        except StoreDamaged:
            return 1  # which messages are how old is not known: all of them stay

    def _horizon(self, topic: int, before: int | None, size: int | None) -> int:
        last = self._run_at(topic, 1 << 62)
        if last is None:
            return 1
        tests: list[Callable[[Run], bool]] = []
        if before is not None:
            tests.append(lambda run: run.time >= before)
        if size is not None:
            tests.append(lambda run: run.size > last.size - size)
        return max((self._first(topic, last, test) for test in tests), default=1)

    def _first(self, topic: int, last: Run, wanted: Callable[[Run], bool]) -> int:
        """The base of the first run that is wanted, by bisection: times and sizes grow with the offsets."""
        if not wanted(last):
            return last.end
        low, high = 0, last.base  # the first wanted base lies above low, and high is one
        while high - low > 1:
            middle = (low + high) // 2
            run = self._run_at(topic, middle)
            if run is not None and wanted(run):
                high = run.base
            else:
                low = middle if run is None else max(middle, run.end - 1)
        return high

    def locate(self, topic: int, time: int, first: int) -> int:
        last = self._run_at(topic, 1 << 62)
        if last is None:
            return 1
        offset = max(self._first(topic, last, lambda run: run.time >= time), first)
        while offset < last.end:
            # Of the first run the latest time may be that of a message which is collected by now.
            run = self._run_at(topic, offset)
            block = None if run is None else self._readable(run)
            if run is None or block is None:
                break  # whoever reads there gets the error
            batch = self._batch(block, run).cut(offset, run.end)
            times = batch.array(TIME).view(pa.int64())
            found = int(pc.index(pc.greater_equal(times, pa.scalar(time)), pa.scalar(True)).as_py())
            if found >= 0:
                return batch.base + found
            offset = run.end
        return offset

    def measure(self, topic: int, start: int) -> int:
        try:
            return self._measure(topic, start)
        except StoreDamaged:
            return 0

    def _measure(self, topic: int, start: int) -> int:
        last, run = self._run_at(topic, 1 << 62), self._run_at(topic, start)
        if last is None or run is None or start >= last.end:
            return 0
        block = self._readable(run)
        within = 0 if block is None else self._batch(block, run).cut(start, run.end).size
        return last.size - run.size + within

    def _readable(self, run: Run) -> Block | None:
        try:
            return self._block(run, run.base)
        except StoreDamaged:
            return None

    def _run_at(self, topic: int, offset: int) -> Run | None:
        """The last run that begins at or below the offset."""
        recent = self._recent.at(topic, offset)
        if recent is not None:
            return recent
        page = self._connection.execute(schema.PAGE_AT, (topic, offset)).fetchone()
        if page is None:
            return None
        runs = opened_page(page)
        if not runs:
            raise StoreDamaged(
                f"The index of {self._names[topic]!r} is damaged: `stafeta check --repair` makes it whole."
            )
        return next((run for run in reversed(runs) if run.base <= offset), None)
