"""When messages are to be sent.

1. As fast as possible: a batch is due when the one before it has been handed over. A door that has no acknowledgement
   takes one message at a time.
2. With a rate: the batches of all publishers are due one after the other, evenly. One that cannot be sent when it is
   due is sent as soon as possible, and its time stays the one at which it was due: a stall counts for all messages that
   it holds up, not only for the first.
"""

import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from stafeta.bench.plan import DOORS, Plan

_SECOND: Final = 1_000_000_000


class Burst(NamedTuple):
    """Messages that are handed over together."""

    first: int  # which of the publisher's messages is the first, from 0 on
    groups: list[tuple[int, int]]  # when they were to be sent, in nanoseconds, and how many of them

    @property
    def total(self) -> int:
        return sum(count for _, count in self.groups)


def bursts(plan: Plan, publisher: int, start: int) -> Iterator[Burst]:
    """The messages of one of the publishers, each burst when it is due."""
    share = plan.share(publisher)
    total = sys.maxsize if share is None else share
    end = sys.maxsize if plan.seconds is None else start + round(plan.seconds * _SECOND)
    _wait_until(start)
    door = DOORS[plan.door]
    if plan.rate is None:
        return _unpaced(plan.batch if door.acknowledges else 1, total, end)
    interval = plan.batch * plan.publishers * _SECOND / plan.rate
    begin = start + interval * publisher / plan.publishers
    most = max(door.batch // plan.batch, 1)
    return _paced(plan.batch, total, begin, interval, end, most)


def _unpaced(batch: int, total: int, end: int) -> Iterator[Burst]:
    sent = 0
    while sent < total and (now := time.monotonic_ns()) < end:
        count = min(batch, total - sent)
        yield Burst(sent, [(now, count)])
        sent += count


def _paced(batch: int, total: int, begin: float, interval: float, end: int, most: int) -> Iterator[Burst]:
    turn = sent = 0
    due = round(begin)
    while sent < total and due < end:
        _wait_until(due)
        now = time.monotonic_ns()
        first = sent
        groups: list[tuple[int, int]] = []
        while due <= now and due < end and sent < total and len(groups) < most:
            count = min(batch, total - sent)
            groups.append((due, count))
            sent += count
            turn += 1
            due = round(begin + turn * interval)
        yield Burst(first, groups)


def _wait_until(due: int) -> None:
    while (left := due - time.monotonic_ns()) > 0:
        time.sleep(left / _SECOND)
