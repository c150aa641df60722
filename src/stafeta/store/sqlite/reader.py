"""Finding messages: from offset to run, from run to block, from block to batch."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stafeta.columns import Block, ColumnBatch, joined
from stafeta.errors import StoreDamaged
from stafeta.message import PAYLOAD, TIME, Batch
from stafeta.store.blocks import Run, batch_of, decode, runs_of, verify
from stafeta.store.sqlite import schema, segments
from stafeta.store.sqlite.pages import unpack
from stafeta.store.sqlite.recent import RecentRuns

CACHE = 32 << 20
WHOLE = 2 << 20  # bytes up to which a batch is handed out as it is, however little was asked for


def load(
    folder: Path, id_: int, header: bytes, content: bytes, checksum: int, segment: int | None
) -> tuple[Block, list[Run]]:
    try:
        body = segments.read(folder, segment, content)
    except FileNotFoundError:
        raise segments.missing(folder, id_, segment) from None
    verify(id_, header, body, checksum)
    return decode(header, body), runs_of(id_, header)


class Reader:
    """Used by the reader's thread alone."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, recent: RecentRuns, names: Mapping[int, str]
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._recent = recent
        self._names = names
        self._cache: OrderedDict[int, tuple[Block, int]] = OrderedDict()
        self._cached = 0

    def read(self, topic: int, start: int, stop: int, size: int) -> Sequence[Batch]:
        batches: list[ColumnBatch] = []
        while start < stop and size > 0:
            # In this order: a checkpoint between the two only moves runs from the first to the second.
            recent = self._recent.find(topic, start)
            limit = min(stop, recent[0].base) if recent else stop
            runs = self._runs(topic, start, limit) or recent
            if not runs or runs[0].base >= stop:
                break
            for run in runs:
                block = self._block(run)
                if block is not None:
                    batch = self._batch(block, run).cut(start, stop)
                    if batch.size > max(size, WHOLE):  # a reader of many topics wants little of each
                        batch = batch.cut(batch.base, batch.base + max(batch.count * size // batch.size, 1))
                    batches.append(batch)
                    size -= batch.size
                    if batch.end < min(run.end, stop):
                        size = 0
                # Where there is none, it was collected since the run was found, and nobody waits for it.
                start = run.end
                if start >= stop or size <= 0:
                    break
        return joined(batches)

    def _batch(self, block: Block, run: Run) -> ColumnBatch:
        return batch_of(self._names[run.topic], block, run)

    def _runs(self, topic: int, start: int, limit: int) -> list[Run]:
        if start >= limit:
            return []
        pages = self._connection.execute(schema.PAGES_FROM, (topic, topic, start, start, limit))
        runs = [run for (page,) in pages for run in unpack(topic, page)]
        return [run for run in runs if run.end > start and run.base < limit]

    def _block(self, run: Run) -> Block | None:
        cached = self._cache.get(run.block)
        if cached is not None:
            self._cache.move_to_end(run.block)
            return cached[0]
        row = self._connection.execute(schema.GET_BLOCK, (run.block,)).fetchone()
        if row is None:
            if run == self._recent.at(run.topic, run.base) or run in self._runs(run.topic, run.base, run.end):
                raise StoreDamaged(
                    f"Stored batch {run.block} is missing, which holds offsets {run.base} to {run.end - 1} of topic "
                    f"{self._names[run.topic]}. Restore the data folder from a copy."
                )
            return None
        try:
            block, _ = load(self._folder, run.block, *row)
        except StoreDamaged:
            if self._connection.execute(schema.GET_BLOCK, (run.block,)).fetchone() is None:
                return None  # it was collected meanwhile, and its segment with it
            raise
        size = block.columns[PAYLOAD].nbytes
        self._cache[run.block] = block, size
        self._cached += size
        while self._cached > CACHE and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1][1]
        return block

    def horizon(self, topic: int, before: int | None, size: int | None) -> int:
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
            block = None if run is None else self._block(run)
            if run is None or block is None:
                break
            batch = self._batch(block, run).cut(offset, run.end)
            times = batch.array(TIME).cast(pa.int64())
            found = int(pc.index(pc.greater_equal(times, pa.scalar(time)), pa.scalar(True)).as_py())
            if found >= 0:
                return batch.base + found
            offset = run.end
        return offset

    def measure(self, topic: int, start: int) -> int:
        last, run = self._run_at(topic, 1 << 62), self._run_at(topic, start)
        if last is None or run is None or start >= last.end:
            return 0
        block = self._block(run)
        within = 0 if block is None else self._batch(block, run).cut(start, run.end).size
        return last.size - run.size + within

    def _run_at(self, topic: int, offset: int) -> Run | None:
        """The last run that begins at or below the offset."""
        recent = self._recent.at(topic, offset)
        if recent is not None:
            return recent
        page = self._connection.execute(schema.PAGE_AT, (topic, offset)).fetchone()
        return None if page is None else [run for run in unpack(topic, page[0]) if run.base <= offset][-1]
