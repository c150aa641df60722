"""Where the messages of the blocks after the last checkpoint lie: the part of the index that is only in memory."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from threading import Lock

from stafeta.store.blocks import Run

_base = attrgetter("base")


class _Generation:
    def __init__(self) -> None:
        self.runs: dict[int, list[Run]] = {}
        self.blocks: set[int] = set()
        self.rows = 0


class RecentRuns:
    """Written by the writer's thread, read by the readers'.

    Two generations: what a checkpoint is writing, and what came since it began. When it is done the first goes whole.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._old = _Generation()
        self._new = _Generation()

    @property
    def due(self) -> tuple[int, int]:
        """How many rows of how many topics no checkpoint has begun to write."""
        return self._new.rows, len(self._new.runs)

    @property
    def blocks(self) -> set[int]:
        """The blocks that the checkpoint under way covers."""
        return self._old.blocks

    def add(self, block: int, runs: Iterable[Run]) -> None:
        with self._lock:
            new, known = self._new, self._new.runs
            new.blocks.add(block)
            for run in runs:
                topic = run[0]
                if topic in known:
                    known[topic].append(run)
                else:
                    known[topic] = [run]
                new.rows += run[2]

    def find(self, topic: int, start: int) -> list[Run]:
        """The runs that hold `start` and what comes after it."""
        with self._lock:
            runs = self._old.runs.get(topic, []) + self._new.runs.get(topic, [])
        at = bisect_right(runs, start, key=_base)
        if at and runs[at - 1].end > start:
            at -= 1
        return runs[at:]

    def release(self, topic: int, first: int) -> None:
        """Forget the runs wholly below `first`; their blocks stay until the checkpoint."""
        with self._lock:
            for generation in (self._old, self._new):
                runs = generation.runs.pop(topic, [])
                kept = [run for run in runs if run.end > first]
                if kept:
                    generation.runs[topic] = kept

    def begin(self) -> list[Run]:
        """A checkpoint begins: all there is, in the order of the index."""
        with self._lock:
            self._merge()
            old = self._old.runs
            return [run for topic in sorted(old) for run in old[topic]]

    def _merge(self) -> None:
        old, new = self._old, self._new
        if not old.blocks:
            self._old, self._new = new, old
            return
        for topic, runs in new.runs.items():
            old.runs.setdefault(topic, []).extend(runs)
        old.blocks |= new.blocks
        self._new = _Generation()

    def finish(self) -> None:
        """The checkpoint is done: the index on disk has what it covered."""
        with self._lock:
            self._old = _Generation()
