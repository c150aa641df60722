"""How often which latency was met, in little memory however many there are.

Latencies are nanoseconds. They are counted in buckets that are 1.1 % wide; the largest is kept as it is.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

STEPS: Final = 64  # buckets between a latency and its double

_log2 = math.log2


class Histogram:
    def __init__(self) -> None:
        self.total = 0
        self.largest = 0
        self._counts: dict[int, int] = {}

    def add(self, latency: int, count: int = 1) -> None:
        bucket = int(_log2(latency) * STEPS) if latency > 1 else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += count
        if latency > self.largest:
            self.largest = latency

    def add_buckets(self, counts: Mapping[int, int], largest: int) -> None:
        """Adds what somebody else has counted by bucket."""
        for bucket, count in counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += sum(counts.values())
        self.largest = max(self.largest, largest)

    def percentiles(self, percents: Iterable[float]) -> list[float]:
        """The latencies that so many percent of all, in order, do not exceed; at least one must have been added."""
        found = []
        buckets = iter(sorted(self._counts.items()))
        bucket, seen = next(buckets)
        for percent in percents:
            needed = self.total * percent / 100
            while seen < needed:
                bucket, count = next(buckets)
                seen += count
            found.append(min(2 ** ((bucket + 1) / STEPS), float(self.largest)))
        return found

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"largest": self.largest, "counts": sorted(self._counts.items())}

    @classmethod
    def merged(cls, plains: Iterable[Mapping[str, Any]]) -> Self:
        """One of several that `to_plain` has made."""
        histogram = cls()
        for plain in plains:
            histogram.add_buckets(dict(plain["counts"]), plain["largest"])
        return histogram
