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
        self.blocks: set[int] = set()
        self.rows = 0

    @property
    def topics(self) -> int:
        return len(self._runs)

    def add(self, block: int, runs: Iterable[Run]) -> None:
        with self._lock:
            self.blocks.add(block)
            for run in runs:
                known = self._runs.get(run.topic)
                if known is None:
                    self._runs[run.topic] = [run]
                else:
                    known.append(run)
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
            if runs is not None:
                self._keep(topic, [run for run in runs if run.end > first])

    def in_index_order(self) -> list[Run]:
        with self._lock:
            return [run for topic in sorted(self._runs) for run in self._runs[topic]]

    def drop_blocks(self, last: int) -> None:
        """Forget the blocks up to this one: the index has them."""
        with self._lock:
            for topic, runs in list(self._runs.items()):
                if runs[0].block <= last:
                    self._keep(topic, [run for run in runs if run.block > last])
            self.blocks = {block for block in self.blocks if block > last}
            self.rows = sum(run.rows for runs in self._runs.values() for run in runs)

    def _keep(self, topic: int, runs: list[Run]) -> None:
        if runs:
            self._runs[topic] = runs
        else:
            del self._runs[topic]
