"""Which windows are open, closed and late: readings in windows of event time, a batch after the other.

1. Each topic has its own clock, the newest time that it has had: one whose backlog is still being read is not late
   because another is ahead. A topic of which nothing waits goes by the time of the day, as far as it takes to close
   what is over: whoever comes back with what it had stored meanwhile is not late.
2. A time that is ahead of the time of the day by more than `delay` says nothing about it: a topic that has no other
   goes by the time of the day, too. The reading is in its window all the same.
3. A window closes when its topic's clock has passed its end by `delay`. What comes for it later is late: it is counted,
   and changes nothing.
4. No window is closed twice, also where a topic's clock does not say which are: of a topic that is not known (any more,
   where a checkpoint is lost), or whose clock is ahead of the time of the day, which was set back then, and the clock
   with it (`recalled`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stafeta.pipeline.jobs.batches.readings import Integers
from stafeta.pipeline.jobs.rolling.windows import NEVER, Windows, encoded

_compute: Any = pc  # its types do not know all of it


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
    clock, window, end = size == 0, size > 0, start + np.abs(size)

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

    closed = ~clock & ~window
    late = new & window & (end <= before[codes] - delay)
    if closed.any():
        known = set(
            zip(codes[closed].tolist(), (-size[closed]).tolist(), start[closed].tolist(), strict=True)
        )
        keys = zip(codes.tolist(), size.tolist(), start.tolist(), strict=True)
        late |= new & np.fromiter((key in known for key in keys), bool, len(rows))
    merged, mine = rows.merged(codes, np.flatnonzero(window & ~late))
    past = merged["start"] + merged["size"] <= after[mine] - delay
    clocks = Windows.clocks(names, after, np.zeros(topics, np.int64))
    return Advanced(
        Windows.joined([clocks, rows.where(closed & (end > after[codes] - delay)), merged.where(~past)]),
        merged.where(past),
        rows.where(late),
        int(rows["count"][clock & new].sum()),
    )


def recalled(
    state: Windows,
    batch: Windows,
    *,
    delay: int,
    now: int,
    closed: Callable[[Sequence[str], int], Windows],
) -> Windows:
    """The state at the time `now`, with the windows that are closed of the topics whose clocks do not say so: those
    that it does not know, which begin with what comes first, and those whose clocks are ahead, which are set back.
    `closed` is asked for the windows of some topics that are closed and end after a time: before it, all are late."""
    ahead = (state["size"] == 0) & (state["start"] > now + delay)
    if ahead.any():
        topics = state.topics.filter(pa.array(ahead)).to_pylist()
        kept = (state["size"] >= 0) | ~np.isin(state.topics.to_numpy(zero_copy_only=False), topics)
        times = np.where(ahead, now - delay, state["start"])
        state = replace(state, columns=state.columns | {"start": times}).where(kept)
        state = Windows.joined([state, closed(topics, now - 2 * delay)])
    names = _compute.unique(batch.topics)
    unknown = names.filter(_compute.invert(_compute.is_in(names, value_set=state.topics)))
    if len(unknown):
        first = int(np.min(batch["start"], initial=now, where=batch["start"] > NEVER))
        clocks = Windows.clocks(unknown, np.full(len(unknown), first), np.zeros(len(unknown), np.int64))
        state = Windows.joined([state, clocks, closed(unknown.to_pylist(), first - delay)])
    return state
