"""How far a reading is from those before it, in standard deviations, over a window of time.

1. A reading is compared with those of its window, itself not included, and there must be `LEAST` of them.
2. The window is cut into `PARTS`, and of each only count, mean and the sum of squared differences are kept: the oldest
   part goes as a whole, so that the window is up to a sixteenth shorter than it says.
3. Everything is added up reading by reading: in which batches they came makes no difference, to the last bit.
"""

from math import inf, nan, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PARTS: Final = 16
LEAST: Final = 8
LARGEST: Final = 1e100  # the squares of larger ones may be more than a double holds: they are passed over


def scored(
    times: NDArray[np.int64], numbers: NDArray[np.float64], memory: list[Any], window: float
) -> tuple[NDArray[np.float64], list[Any]]:
    """The score of each reading (NaN where there is too little to compare with), and what is to be remembered: the
    parts of the window as [number, count, mean, squares]. Times are microseconds and do not go back."""
    width = max(round(window * 1e6 / PARTS), 1)
    parts = [list(part) for part in memory]
    scores = []
    place, count, mean, squares = parts.pop() if parts else (-(1 << 62), 0, 0.0, 0.0)
    before = _sum(parts)
    for part, number in zip((times // width).tolist(), numbers.tolist(), strict=True):
        if part != place:
            parts = [one for one in [*parts, [place, count, mean, squares]] if one[0] > part - PARTS]
            before = _sum(parts)
            place, count, mean, squares = part, 0, 0.0, 0.0
        if abs(number) > LARGEST:
            scores.append(nan)
            continue
        scores.append(_score(number, _added(before, (count, mean, squares))))
        count += 1
        away = number - mean
        mean += away / count
        squares += away * (number - mean)
    return np.array(scores), [*parts, [place, count, mean, squares]]


_Sum = tuple[int, float, float]


def _score(number: float, known: _Sum) -> float:
    count, mean, squares = known
    if count < LEAST:
        return nan
    away = abs(number - mean)
    spread = sqrt(squares / (count - 1))
    if spread > 0:
        return away / spread
    return inf if away else 0.0


def _added(one: _Sum, other: _Sum) -> _Sum:
    if not one[0]:
        return other
    if not other[0]:
        return one
    count = one[0] + other[0]
    apart = other[1] - one[1]
    mean = one[1] + apart * other[0] / count
    return count, mean, one[2] + other[2] + apart * apart * one[0] * other[0] / count


def _sum(parts: list[list[Any]]) -> _Sum:
    known: _Sum = (0, 0.0, 0.0)
    for _, count, mean, squares in parts:
        known = _added(known, (count, mean, squares))
    return known
