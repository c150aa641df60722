"""Whether what is stored of each topic is without a gap, by the headers of blocks in their order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stafeta.store.blocks import Run


class Gap(NamedTuple):
    """Offsets that are not there; or, where they are `twice`, that several blocks have."""

    topic: int
    start: int
    stop: int
    twice: bool = False


class Continuity:
    """`firsts` are the first offsets that topics keep, `nexts` those that come next: what lies between has to be there,
    but for what was `skipped`."""

    def __init__(
        self,
        firsts: Mapping[int, int],
        nexts: Mapping[int, int],
        skipped: Mapping[int, Sequence[tuple[int, int]]],
    ) -> None:
        self._firsts = firsts
        self._nexts = nexts  # of the same topics
        self._skipped = skipped
        self._ends: dict[int, int] = {}  # by topic, how far what was looked at reaches

    def add(self, runs: Iterable[Run]) -> Iterator[Gap]:
        """The runs of the next block."""
        for run in runs:
            topic = run.topic
            if topic not in self._firsts or run.end <= self._firsts[topic]:
                continue
            end = self._ends.get(topic, self._firsts[topic])
            if run.base > end:
                yield from self._missing(topic, end, run.base)
            elif run.base < end and topic in self._ends:
                yield Gap(topic, run.base, min(end, run.end), twice=True)
            self._ends[topic] = max(end, run.end)

    def finish(self) -> Iterator[Gap]:
        for topic, next_ in self._nexts.items():
            end = self._ends.get(topic, self._firsts[topic])
            if end < next_:
                yield from self._missing(topic, end, next_)

    def _missing(self, topic: int, start: int, stop: int) -> Iterator[Gap]:
        for first, end in sorted(self._skipped.get(topic, ())):
            if first < stop and end > start:
                if first > start:
                    yield Gap(topic, start, first)
                start = end
        if start < stop:
            yield Gap(topic, start, stop)
