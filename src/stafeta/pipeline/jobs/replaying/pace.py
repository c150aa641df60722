"""When which messages of a replay are due.

1. Messages that are sent by the clock go in chunks of about `CHUNK` seconds. A chunk is a transaction: it is sent whole
   and once.
2. Chunks are cut by the messages alone, so that a replay that goes on cuts the same.
"""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stafeta.pipeline.jobs.replaying.request import Request

CHUNK: Final = 0.2  # seconds
_compute: Any = pc  # its types do not know all of it


class Chunk(NamedTuple):
    """Rows of a portion, from `start` up to, not including, `stop`, and when they are due: seconds on the replay's own
    clock."""

    number: int
    start: int
    stop: int
    due: float


def chunks(times: "pa.Array[Any]", request: Request, begin: int, before: int) -> Iterator[Chunk]:
    """The chunks of a portion. Its messages have these times, in order; the replay's first message has the time
    `begin`, and so many messages were sent `before`."""
    if isinstance(request.rate, float):
        return _by_count(len(times), request.rate, before)
    return _by_time(times, begin, request.speed)


def _by_count(rows: int, rate: float, before: int) -> Iterator[Chunk]:
    size = max(1, round(rate * CHUNK))
    for number, start in enumerate(range(0, rows, size)):
        yield Chunk(number, start, min(start + size, rows), (before + start) / rate)


def _by_time(times: "pa.Array[Any]", begin: int, speed: float) -> Iterator[Chunk]:
    micros = times.cast(pa.int64())
    rows = len(micros)
    if not rows:
        return
    width = max(1, round(CHUNK * speed * 1_000_000))
    slots = _compute.divide(_compute.subtract(micros, begin), width)
    changed = _compute.not_equal(slots.slice(1), slots.slice(0, rows - 1))
    starts = [0, *(at + 1 for at in _compute.indices_nonzero(changed).to_pylist())]
    for number, (start, stop) in enumerate(pairwise([*starts, rows])):
        yield Chunk(number, start, stop, (micros[start].as_py() - begin) / 1_000_000 / speed)


class Clock:
    """The replay's own clock. It begins with what is sent first."""

    def __init__(self, wait: Callable[[float], object]) -> None:
        """`wait` waits for so many seconds, or less where the replay is stopped."""
        self._wait = wait
        self._origin: float | None = None

    def wait_until(self, due: float) -> None:
        now = time.monotonic()
        if self._origin is None:
            self._origin = now - due
        if self._origin + due > now:
            self._wait(self._origin + due - now)
