"""Sketches of numbers, for quantiles: KLL sketches, of many windows at once.

1. A sketch is numbers in their order, each with a level: one of level n stands for 2**n readings.
2. One that has more numbers than it has room for gives up every second one of a level; the others go to the next level,
   and stand for twice as many. Levels below the highest have less room (`_ROOM`), as KLL has it.
3. Which half goes is drawn by lot, but the lot is a function of what the sketch is of: the same readings in the same
   batches make the same sketch, whoever computes it, and whenever.
4. Up to `K` readings a sketch holds all of them, and its quantiles are exact. Beyond, their ranks are off by 1.33% or
   less in 99 of 100 cases. ("Optimal Quantile Approximation in Streams", Karnin, Lang and Liberty, 2016)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stafeta.pipeline.jobs.batches.readings import Integers, Numbers

K: Final = 200
_LEAST: Final = 8  # numbers that a level has room for
_HEIGHT: Final = 62  # levels that a sketch can have
_EACH: Final = 8  # values in a group, on average, from which on each group is sorted by itself
# By height and level: how many numbers there is room for.
_ROOM: Final = np.array(
    [
        [
            max(_LEAST, int(np.ceil(K * (2 / 3) ** (height - 1 - level)))) if level < height else 0
            for level in range(_HEIGHT)
        ]
        for height in range(_HEIGHT + 1)
    ],
    np.int64,
)
_TOTAL: Final = _ROOM.sum(axis=1)


@dataclass(frozen=True)
class Sketches:
    """Sketches one after the other."""

    numbers: Numbers
    levels: NDArray[np.int8]
    counts: Integers
    """How many numbers each has."""

    @classmethod
    def empty(cls, count: int = 0) -> "Sketches":
        return cls(np.empty(0), np.empty(0, np.int8), np.zeros(count, np.int64))

    @classmethod
    def of(cls, values: Numbers, counts: Integers, lots: Integers) -> "Sketches":
        """Sketches of values, so many for each, one after the other. NaN is no number, and in none."""
        keep = ~np.isnan(values)
        if not keep.all():
            counts = _sums(keep.astype(np.int64), counts)
            values = values[keep]
        values = _sorted(values, counts)
        return cls(values, np.zeros(len(values), np.int8), counts)._shrunk(lots)

    @classmethod
    def joined(cls, parts: "Sequence[Sketches]") -> "Sketches":
        """Those of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.levels for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def take(self, places: Integers) -> "Sketches":
        """Those at these places."""
        ends = np.cumsum(self.counts)
        if len(places) and (places[1:] == places[:-1] + 1).all():
            rows = slice(ends[places[0]] - self.counts[places[0]], ends[places[-1]])
            return Sketches(self.numbers[rows], self.levels[rows], self.counts[places])
        taken = _rows(ends - self.counts, self.counts, places)
        return Sketches(self.numbers[taken], self.levels[taken], self.counts[places])

    def merged(self, sizes: Integers, lots: Integers) -> "Sketches":
        """Sketches that are made of so many neighbours each."""
        counts = _sums(self.counts, sizes)
        several = np.flatnonzero(sizes > 1)
        if not len(several):
            return self
        starts = np.cumsum(counts) - counts
        rows = _rows(starts, counts, several)
        group = np.repeat(np.arange(len(several)), counts[several])
        order = rows[np.lexsort((self.numbers[rows], group))]
        numbers, levels = self.numbers.copy(), self.levels.copy()
        numbers[rows], levels[rows] = self.numbers[order], self.levels[order]
        return Sketches(numbers, levels, counts)._shrunk(lots)

    def quantiles(self, rank: float) -> Numbers:
        """The number at a rank of each; NaN where a sketch has none."""
        found = np.full(len(self.counts), np.nan)
        some = np.flatnonzero(self.counts)
        if len(some):
            weights = np.left_shift(np.int64(1), self.levels.astype(np.int64))
            upto = np.cumsum(weights)
            ends = np.cumsum(self.counts)[some]
            before = np.concatenate([[0], upto])[ends - self.counts[some]]
            wanted = np.ceil(np.round(rank * (upto[ends - 1] - before), 6)).astype(np.int64)
            found[some] = self.numbers[np.searchsorted(upto, before + np.maximum(wanted, 1))]
        return found

    def _shrunk(self, lots: Integers) -> "Sketches":
        """With none that has more numbers than it has room for."""
        large = np.flatnonzero(self.counts > K)
        if not len(large):
            return self
        done = self.take(large)._halved_until_small(lots[large])
        small = np.flatnonzero(self.counts <= K)
        places = np.empty(len(self.counts), np.int64)
        places[small], places[large] = np.arange(len(small)), len(small) + np.arange(len(large))
        return done if not len(small) else Sketches.joined([self.take(small), done]).take(places)

    def _halved_until_small(self, lots: Integers) -> "Sketches":
        plain = not self.levels.any()
        now = self._plain_halved(_mixed(lots)) if plain else self
        for turn in range(plain, 1 << 10):
            count = len(now.counts)
            owner = np.repeat(np.arange(count), now.counts)
            sizes = np.bincount(owner * _HEIGHT + now.levels, minlength=count * _HEIGHT)
            sizes = sizes.reshape(count, _HEIGHT)
            heights = _HEIGHT - np.argmax(sizes[:, ::-1] > 0, axis=1)
            over = now.counts > _TOTAL[heights]
            if not over.any():
                break
            level = np.argmax(sizes >= _ROOM[heights], axis=1)  # the lowest that is full
            now = now._halved(owner, np.where(over, level, -1), sizes, _mixed(lots + turn))
        return now

    def _plain_halved(self, lots: Integers) -> "Sketches":
        """The first turn where all numbers are of level 0, of which all sketches have too many: what `_halved` makes of
        them, without a look at each number. Most of the work of large windows is this one."""
        odd, at_end, half = self.counts & 1, lots >> 1 & 1, lots & 1
        kept = self.counts // 2 + odd
        starts, firsts = np.cumsum(self.counts) - self.counts, np.cumsum(kept) - kept
        shift = starts + half - odd * (1 - at_end) - 2 * firsts
        taken = np.repeat(shift, kept) + 2 * np.arange(kept.sum())
        levels = np.ones(len(taken), np.int8)
        left = firsts + at_end * (kept - 1)
        single = np.flatnonzero(odd)
        taken[left[single]] = (starts + at_end * (self.counts - 1))[single]
        levels[left[single]] = 0
        return Sketches(self.numbers[taken], levels, kept)

    def _halved(self, owner: Integers, level: Integers, sizes: Integers, lots: Integers) -> "Sketches":
        """One level of each (-1: none) with every second number gone, the others a level above."""
        rows = np.flatnonzero(self.levels == level[owner])
        mine = owner[rows]
        size = np.where(level >= 0, sizes[np.arange(len(level)), level], 0)
        place = np.arange(len(rows)) - (np.cumsum(size) - size)[mine]
        # Where they are odd one stays as it is: the first, or the last.
        odd, at_end, half = size & 1, lots >> 1 & 1, lots & 1
        left = (odd[mine] == 1) & (place == np.where(at_end == 1, size - 1, 0)[mine])
        place -= (odd * (1 - at_end))[mine]
        up = ~left & (place & 1 == half[mine])
        levels = self.levels.copy()
        levels[rows[up]] += 1
        keep = np.ones(len(levels), bool)
        keep[rows] = up | left
        return Sketches(self.numbers[keep], levels[keep], _sums(keep.astype(np.int64), self.counts))


def _rows(starts: Integers, counts: Integers, places: Integers) -> Integers:
    """The rows of groups that start there and have so many rows, of those at these places."""
    taken = counts[places]
    shift = starts[places] - (np.cumsum(taken) - taken)
    return np.repeat(shift, taken) + np.arange(taken.sum())


def _sums(values: Integers, sizes: Integers) -> Integers:
    """Sums over neighbours, so many each, or none."""
    upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    ends = np.cumsum(sizes)
    sums: Integers = upto[ends] - upto[ends - sizes]
    return sums


def _sorted(values: Numbers, counts: Integers) -> Numbers:
    """The values of each group in order."""
    if not len(values) or counts.max() <= 1:
        return values
    if len(values) < _EACH * len(counts):
        group = np.repeat(np.arange(len(counts)), counts)
        ordered: Numbers = values[np.lexsort((values, group))]
        return ordered
    values = values.copy()
    ends = np.cumsum(counts)
    for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
        values[start:end].sort()
    return values


def _mixed(lots: Integers) -> Integers:
    """Bits that have nothing to do with one another. (splitmix64)"""
    bits = lots.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (bits ^ bits >> np.uint64(31)).view(np.int64)
