"""The time that messages get: the system's, unless that jumps."""

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger("stafeta.broker")

STEP = 10 * 1_000_000_000  # nanoseconds by which the system's clock may differ from what it should be by now
PATIENCE = 60 * 1_000_000_000  # for so long it has to do so, to be believed

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while the machine sleeps


class Clock:
    """Microseconds in UTC. A clock that is set, or jumps for a moment, is followed only once it stays where it is: a
    message with a time years ahead would hold up all that goes by age."""

    def __init__(
        self,
        system: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = lambda: time.clock_gettime_ns(_STEADY),
    ) -> None:
        self._system = system
        self._steady = steady
        self._last, self._at = system(), steady()
        self._jumped: int | None = None  # since when the system's clock is somewhere else

    def now(self) -> int:
        now, at = self._system(), self._steady()
        expected = self._last + at - self._at
        if abs(now - expected) <= STEP:
            self._jumped = None
            now = max(now, self._last)
        elif self._stays(at):
            log.warning("the system's clock was set; messages have its time from now on")
        else:
            now = expected
        self._last, self._at = now, at
        return now // 1000

    def _stays(self, at: int) -> bool:
        if self._jumped is None:
            self._jumped = at
            log.warning("the system's clock has jumped; it is followed if it stays there")
        if at - self._jumped < PATIENCE:
            return False
        self._jumped = None
        return True


class TurnClock:
    """The same, but one time for all that comes in one turn of the loop, where the loop's own time distinguishes its
    turns."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._loop = asyncio.get_running_loop()
        self._turn, self._now = -1.0, 0

    def now(self) -> int:
        turn = self._loop.time()
        if turn != self._turn:
            self._turn, self._now = turn, self._clock.now()
        return self._now
