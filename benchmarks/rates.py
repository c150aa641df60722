"""Columns for how fast something went, over several rounds."""

from collections.abc import Sequence

from benchmarks.load import Pace
from benchmarks.results import Column, Value

RATES = (
    Column("rate", "messages/s"),
    Column("p50_ms", "p50 ms", 2),
    Column("p99_ms", "p99 ms", 2),
)
CHOSEN = "The round in the middle by messages a second, of"


def rates(rounds: Sequence[Pace]) -> dict[str, Value]:
    """The values of `RATES`, all of one round: the one in the middle."""
    middle = sorted(rounds, key=lambda each: each.rate)[(len(rounds) - 1) // 2]
    return {
        "rate": middle.rate,
        "p50_ms": None if middle.p50 is None else middle.p50 * 1000,
        "p99_ms": None if middle.p99 is None else middle.p99 * 1000,
    }
