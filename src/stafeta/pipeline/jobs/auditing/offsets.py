"""What is said of offsets that are missing, too many or not the same.

1. The log goes on while it is looked at. What it has collected since is not missing from it; nor is it a gap, if it is
   archived by now, or lies before all that is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stafeta.pipeline.jobs.auditing.findings import Tally
from stafeta.pipeline.jobs.auditing.offset_bits import Block, Bounds, DoubtfulRow, ranges_of
from stafeta.ranges import within, without

GAP: Final = "in neither lake nor log"
LOST: Final = "missing from the log"
ABSENT: Final = "said to be archived, not in the files"
UNSAID: Final = "in the files, not said to be archived"
LAKE_TWICE: Final = "more than once in the lake"
LOG_TWICE: Final = "more than once in the log"
UNLIKE: Final = "not the same in lake and log"
OTHER_LOG: Final = "archived, and beyond the log's end: it is another log"
UNRELATED: Final = "the log is not the one that was archived, or has lost some of it"


class Now(NamedTuple):
    """What the log begins and ends with, and what is archived, or known to be absent, after all was read."""

    first: Mapping[str, int]
    next: Mapping[str, int]
    archived: Mapping[str, Sequence[tuple[int, int]]]


def judge(tally: Tally, blocks: Iterable[Block], bounds: Mapping[str, Bounds], now: Now) -> None:
    """Adds what is wrong by the bits of blocks."""
    for one in blocks:
        if one.block is None:
            continue
        bound = bounds.get(one.topic, Bounds(one.topic))
        # A topic that is gone had nothing that was waited for.
        collected = (1, now.first.get(one.topic, bound.next))
        excused = within(now.archived.get(one.topic, ()), *collected) if bound.said else [collected]
        tally.add("archive", one.topic, ABSENT, ranges_of(one.block, one.absent))
        tally.add("archive", one.topic, UNSAID, ranges_of(one.block, one.unsaid))
        tally.add("offsets", one.topic, LOST, without(ranges_of(one.block, one.lost & ~one.gap), [collected]))
        tally.add("offsets", one.topic, GAP, without(ranges_of(one.block, one.gap), excused))


def judge_rows(tally: Tally, rows: Iterable[DoubtfulRow]) -> None:
    """Adds what is wrong by the rows of doubtful blocks."""
    for topic, offset, in_lake, in_log, alike in rows:
        here = [(offset, offset + 1)]
        if in_lake > 1:
            tally.add("offsets", topic, LAKE_TWICE, here)
        if in_log > 1:
            tally.add("offsets", topic, LOG_TWICE, here)
        if not alike:
            tally.add("agreement", topic, UNLIKE, here)


def judge_ends(tally: Tally, bounds: Iterable[Bounds], now: Now) -> None:
    """Adds topics of which more is archived than there ever was."""
    for one in bounds:
        end = now.next.get(one.topic)
        if end is not None and one.said and one.said[-1][1] > end:
            tally.add("agreement", one.topic, OTHER_LOG, [(end, one.said[-1][1])])
