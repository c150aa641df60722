"""How late the event loop is: a timer that notes by how much."""

import asyncio
from typing import Final

from stafeta.histogram import SECONDS, Histogram

INTERVAL: Final = 0.5  # seconds


class LoopLag:
    """From `start` to `stop`. What keeps the loop busy for long keeps everybody waiting for as long."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._next(self._loop.time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, now: float) -> None:
        self._timer = self._loop.call_at(now + INTERVAL, self._look, now + INTERVAL)

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self.seconds.add(max(now - due, 0.0))
        self._next(now)
