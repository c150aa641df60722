"""How often something was how large, in fixed buckets: what a histogram of Prometheus is made of."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MESSAGES: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


class Histogram:
    """Counted by one thread, and read by any."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (
            len(self.bounds) + 1
        )  # of what is at most the bound; the last of what is above all
        self.sum: float = 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> "Histogram":
        made = Histogram(self.bounds)
        made.counts, made.sum = self.counts.copy(), self.sum
        return made

    @property
    def total(self) -> int:
        return sum(self.counts)
