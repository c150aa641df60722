"""Reading several topics in the order of the log: each block is loaded once for all of them.

Topics that are published together share blocks. Read one after the other, each of them would load all these blocks
again, where there are more than stay in memory.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from stafeta.columns import Block
from stafeta.errors import StoreDamaged
from stafeta.message import Batch
from stafeta.store.blocks import Run
from stafeta.store.port import Span
from stafeta.store.sqlite.reader import Reader, payload_bytes

AHEAD = 16 << 10  # runs that are looked up ahead, of all topics together


class Scan:
    """Used by the reader's thread alone."""

    def __init__(self, reader: Reader, spans: Sequence[Span]) -> None:
        self._reader = reader
        self._spans = [span._replace(stop=min(span.stop, reader.end_of(span.topic))) for span in spans]
        ahead = -(-AHEAD // max(len(spans), 1))
        self._runs: list[Iterator[Run]] = [reader.runs(*span, ahead) for span in self._spans]
        self._next: list[tuple[int, int, int, Run]] | None = None  # a heap: block, row, which span, run
        self._failed: StoreDamaged | None = None

    def read(self, size: int, overhead: int) -> list[Batch]:
        """The next messages, of blocks up to about `size` bytes, where each takes `overhead` beside its payload; none
        at the end. What comes before damage is whole; the next call raises for the damage."""
        found: list[Batch] = []
        if self._failed is None:
            try:
                self._read(size, overhead, found)
            except StoreDamaged as error:
                self._failed = error
        if self._failed is not None and not found:
            raise self._failed
        return found

    def _read(self, size: int, overhead: int, found: list[Batch]) -> None:
        if self._next is None:
            firsts = [(at, run) for at, runs in enumerate(self._runs) for run in (next(runs, None),) if run]
            self._next = [self._placed(at, run) for at, run in firsts]
            heapify(self._next)
        heap, reader = self._next, self._reader
        last: Block | None = None
        while heap and size > 0:
            *_, at, run = heap[0]
            _, start, stop = self._spans[at]
            batch = reader.batch(run, start, stop)
            if batch is not None:
                found.append(batch)
                size -= overhead * batch.count
                if batch.block is not last:  # all of which is in memory as long as the batch is
                    last = batch.block
                    size -= payload_bytes(last)
            following = next(self._runs[at], None)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, self._placed(at, following))

    def _placed(self, at: int, run: Run) -> tuple[int, int, int, Run]:
        """Where what a span has of a run begins: of one run, spans may have different messages."""
        return run.block, run.row + max(self._spans[at].start - run.base, 0), at, run
