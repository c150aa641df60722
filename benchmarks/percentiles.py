"""One figure out of several."""

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of these, which are in order, that `percent` of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def median(figures: Sequence[float]) -> float:
    """The one in the middle; the lower one of two."""
    return percentile(sorted(figures), 50)
