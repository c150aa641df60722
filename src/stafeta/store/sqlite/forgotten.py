"""Topics that were removed so long ago that their names are not remembered any more.

Of each only the number is known, in ranges: numbers are given out one after the other, so that a million of them are a
few ranges. What blocks still hold of them nobody wants.
"""

from bisect import bisect_right
from collections.abc import Iterable

NEVER = 1 << 62  # the first offset that a forgotten topic keeps


class Forgotten:
    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Each from, up to but not including."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in sorted(ranges):
            self._starts.append(start)
            self._stops.append(stop)

    def copy(self) -> "Forgotten":
        return Forgotten(zip(self._starts, self._stops, strict=True))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, topic: object) -> bool:
        assert isinstance(topic, int)
        at = bisect_right(self._starts, topic) - 1
        return at >= 0 and topic < self._stops[at]

    @property
    def last(self) -> int:
        return self._stops[-1] - 1 if self._stops else 0

    def add(self, topic: int) -> tuple[tuple[int, int], int | None]:
        """Returns the range that it is in now; and where one began that has become a part of it."""
        at = bisect_right(self._starts, topic)
        joins_before = at > 0 and self._stops[at - 1] == topic
        joins_after = at < len(self._starts) and self._starts[at] == topic + 1
        if joins_before:
            self._stops[at - 1] = topic + 1
            if not joins_after:
                return (self._starts[at - 1], topic + 1), None
            self._stops[at - 1] = self._stops.pop(at)
            return (self._starts[at - 1], self._stops[at - 1]), self._starts.pop(at)
        if joins_after:
            before, self._starts[at] = self._starts[at], topic
            return (topic, self._stops[at]), before
        self._starts.insert(at, topic)
        self._stops.insert(at, topic + 1)
        return (topic, topic + 1), None


class Firsts(dict[int, int]):
    """The first offset that each topic keeps. Forgotten ones keep nothing; of those that nobody knows, all is kept."""

    def __init__(self, firsts: Iterable[tuple[int, int]], forgotten: Forgotten) -> None:
        super().__init__(firsts)
        self.forgotten = forgotten

    def kept_from(self, topic: int) -> int:
        first = self.get(topic)
        if first is None:
            return NEVER if topic in self.forgotten else 0
        return first
