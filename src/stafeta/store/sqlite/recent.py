"""Where the messages of the blocks after the last checkpoint lie: the part of the index that is only in memory."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from threading import Lock

from stafeta.store.blocks import Run

_base = attrgetter("base")


class RecentRuns:
    """Written by the writer's thread, read by the readers'."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: dict[int, list[Run]] = {}
        self._blocks: set[int] = set()
        self.rows = 0

    def add(self, block: int, runs: Iterable[Run]) -> None:
        with self._lock:
            self._blocks.add(block)
            for run in runs:
                self._runs.setdefault(run.topic, []).append(run)
                self.rows += run.rows

    def find(self, topic: int, start: int) -> list[Run]:
        """The runs that hold `start` and what comes after it."""
        with self._lock:
            runs = self._runs.get(topic)
            if runs is None:
                return []
            at = bisect_right(runs, start, key=_base)
            if at and runs[at - 1].end > start:
                at -= 1
            return runs[at:]

    def release(self, topic: int, first: int) -> None:
        """Forget the runs wholly below `first`; their blocks stay until the checkpoint."""
        with self._lock:
            runs = self._runs.get(topic)
            if runs is None:
                return
            kept = [run for run in runs if run.end > first]
            if kept:
                self._runs[topic] = kept
            else:
                del self._runs[topic]

    def live(self) -> list[Run]:
        """Every run, in the order of the index they go to."""
        with self._lock:
            return [run for topic in sorted(self._runs) for run in self._runs[topic]]

    def free_blocks(self, live: Iterable[Run]) -> set[int]:
        """The blocks in which none of the `live` runs lies."""
        return self._blocks - {run.block for run in live}

    def clear(self) -> None:
        with self._lock:
            self._runs = {}
            self._blocks = set()
            self.rows = 0
