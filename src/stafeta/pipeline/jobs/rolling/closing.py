"""Which windows are open, closed and late: readings in windows of event time, a batch after the other.

1. Each topic has its own clock, the newest time that it has had: one whose backlog is still being read is not late
   because another is ahead. A topic of which nothing waits goes by the time of the day, as far as it takes to close
   what is over: whoever comes back with what it had stored meanwhile is not late.
2. A time that is ahead of the time of the day by more than `delay` says nothing about it: a topic that has no other
   goes by the time of the day, too. The reading is in its window all the same.
3. A window closes when its topic's clock has passed its end by `delay`. What comes for it later is late: it is counted,
   and changes nothing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stafeta.pipeline.jobs.batches.readings import Integers
from stafeta.pipeline.jobs.rolling.windows import NEVER, Windows, encoded


class Advanced(NamedTuple):
    """What comes of a state and a batch."""

    open: Windows
    """The next state, with the clocks."""
    closed: Windows
    late: Windows
    """Parts, not put together."""
    ahead: int


def advanced(state: Windows, batch: Windows, *, delay: int, now: int, idle: int | None = None) -> Advanced:
    """What comes of a state and the parts of a batch, at the time `now`. `idle` is a time at which nothing waited of
    the topics that are not in the batch."""
    rows = Windows.joined([state, batch])
    if not len(rows):
        return Advanced(rows, rows, rows, 0)
    codes, names = encoded(rows.topics)
    size, start, topics = rows["size"], rows["start"], len(names)
    new = np.arange(len(rows)) >= len(state)
    clock, end = size == 0, start + size

    def latest(where: NDArray[np.bool_]) -> Integers:
        found = np.full(topics, NEVER, np.int64)
        np.maximum.at(found, codes[where], (end + np.where(clock, 0, delay))[where])
        return found

    before, newest = latest(clock & ~new), latest(clock & new)
    here = np.zeros(topics, bool)
    here[codes[new]] = True
    by_day = np.where(here, now, NEVER if idle is None else idle)
    over = latest(~clock & (end + delay <= by_day[codes]))
    after = np.maximum(before, np.where(newest > NEVER, newest, over))

    late = new & ~clock & (end <= before[codes] - delay)
    merged, mine = rows.merged(codes, np.flatnonzero(~clock & ~late))
    past = merged["start"] + merged["size"] <= after[mine] - delay
    clocks = Windows.clocks(names, after, np.zeros(topics, np.int64))
    return Advanced(
        Windows.joined([clocks, merged.where(~past)]),
        merged.where(past),
        rows.where(late),
        int(rows["count"][clock & new].sum()),
    )
