"""Where the messages of the blocks after the last checkpoint lie: the part of the index that is only in memory."""

from collections.abc import Iterable
from threading import Lock

from stafeta.store.blocks import Run, RunHead
from stafeta.store.sqlite.pages import Runs, append, append_block, before, between, from_first


class _Generation:
    def __init__(self) -> None:
        self.runs: dict[int, Runs] = {}  # by topic
        self.rows = 0


class RecentRuns:
    """Written by the writer's thread, read by the reader's.

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

    def add(self, runs: Iterable[Run]) -> None:
        with self._lock:
            self._new.rows += append(self._new.runs, runs)

    def add_block(self, block: int, heads: Iterable[RunHead]) -> None:
        """All runs of a block that was just written."""
        with self._lock:
            self._new.rows += append_block(self._new.runs, block, heads)

    def find(self, topic: int, start: int, limit: int = 256) -> list[Run]:
        """The runs that hold `start` and what comes after it, up to `limit` of them."""
        found: list[Run] = []
        with self._lock:
            for generation in (self._old, self._new):
                runs = generation.runs.get(topic)
                if runs is not None and len(found) < limit:
                    first = before(runs, start)
                    found += between(topic, runs, first, first + limit - len(found))
        return [run for run in found if run.end > start]

    def at(self, topic: int, offset: int) -> Run | None:
        """The last run that begins at or below the offset."""
        with self._lock:
            for generation in (self._new, self._old):
                runs = generation.runs.get(topic)
                if runs is not None and runs[0] <= offset:
                    at = before(runs, offset)
                    return between(topic, runs, at, at + 1)[0]
        return None

    def release(self, topic: int, first: int) -> None:
        """Forget the runs wholly below `first`."""
        with self._lock:
            for generation in (self._old, self._new):
                runs = generation.runs.pop(topic, None)
                kept = None if runs is None else from_first(runs, first)
                if kept:
                    generation.runs[topic] = kept

    def begin(self) -> list[tuple[int, Runs]]:
        """A checkpoint begins: all there is, in the order of the index."""
        with self._lock:
            assert not self._old.runs
            self._old, self._new = self._new, _Generation()
            return sorted(self._old.runs.items())

    def finish(self) -> None:
        """The checkpoint is done: the index on disk has what it covered."""
        with self._lock:
            self._old = _Generation()
