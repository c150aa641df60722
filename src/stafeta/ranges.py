"""Ranges of offsets: from the first up to, not including, the second of each pair."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge

Run = tuple[int, int]
Ranges = dict[str, list[Run]]
"""By topic, in order and apart."""


def merged(*sorted_runs: Iterable[Run]) -> Iterator[Run]:
    """All of them in order, those that overlap or touch made one. Each of what is given is in order."""
    runs = merge(*sorted_runs)
    for start, stop in runs:
        for low, high in runs:
            if low > stop:
                yield start, stop
                start, stop = low, high
            elif high > stop:
                stop = high
        yield start, stop


def union(runs: Iterable[Run]) -> list[Run]:
    """The same offsets, in order and in as few ranges as can be."""
    return list(merged(sorted(runs)))


def ranges_of(offsets: Iterable[int]) -> list[Run]:
    """Single offsets, as ranges."""
    ranges: list[Run] = []
    for offset in sorted(set(offsets)):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def within(runs: Iterable[Run], low: int | None, high: int | None) -> list[Run]:
    """The offsets of these ranges from `low` up to, not including, `high`; None where an end is open."""
    cut = [
        (start if low is None else max(start, low), stop if high is None else min(stop, high))
        for start, stop in runs
    ]
    return [(start, stop) for start, stop in cut if start < stop]


def without(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """The offsets of these ranges that are not in those."""
    left = []
    taken = union(others)
    for start, stop in runs:
        for low, high in taken:
            if high <= start or low >= stop:
                continue
            if low > start:
                left.append((start, low))
            start = high
        if start < stop:
            left.append((start, stop))
    return left


def missing(wanted: Mapping[str, Sequence[Run]], known: Mapping[str, Sequence[Run]]) -> Ranges:
    """What of the one is not in the other, by topic."""
    left = {topic: without(runs, known.get(topic, ())) for topic, runs in wanted.items()}
    return {topic: runs for topic, runs in left.items() if runs}


def united(one: Ranges, other: Ranges) -> Ranges:
    """What is in either, by topic."""
    small, large = sorted((one, other), key=len)
    return {**large, **{topic: union([*large.get(topic, ()), *runs]) for topic, runs in small.items()}}


def first_missing(runs: Iterable[Run], start: int = 1) -> int:
    """The first offset, from a given one on, that is not in these ranges."""
    for low, high in union(runs):
        if low <= start < high:
            start = high
    return start


def count(ranges: Mapping[str, Sequence[Run]]) -> int:
    """How many offsets there are."""
    return sum(stop - start for runs in ranges.values() for start, stop in runs)


def total(ranges: Mapping[str, Sequence[Run]]) -> int:
    """How many ranges there are."""
    return sum(map(len, ranges.values()))
