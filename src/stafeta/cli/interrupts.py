"""Ctrl-C, handled only where that does no harm.

1. Python raises KeyboardInterrupt between any two steps. In the middle of a call to Spark's JVM that breaks the
   connection, and the next call, which would cancel the query, fails.
2. So Ctrl-C is noted, and raised only at a prompt. A query during which it was noted is cancelled from another thread,
   which has a connection of its own, and ends by itself.
3. A query that does not end is left at the second Ctrl-C, with the program.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final, Self

from stafeta.cli import exits

_AGAIN: Final = 0.1  # seconds between two attempts to cancel, since what is only planned yet goes on
_SECOND: Final = 1.0  # seconds after which a second Ctrl-C is meant as such


class Interrupts:
    """Takes Ctrl-C while it is entered, which the main thread may do."""

    def __init__(self) -> None:
        self._prompting = False
        self._came_at: float | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def prompted(self, ask: Callable[[], str]) -> str:
        """What a person answers. Ctrl-C raises KeyboardInterrupt here."""
        self._came_at = None
        try:
            self._prompting = True
            return ask()
        finally:
            self._prompting = False

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Once Ctrl-C has come, calls `cancel` on another thread until what is within has ended, and raises
        KeyboardInterrupt then."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_AGAIN):
                if self._came_at is not None:
                    try:
                        cancel()
                    except Exception:
                        logging.getLogger("stafeta.cli").debug("Cancelling fails", exc_info=True)

        watching = threading.Thread(target=watch, name="cancelling", daemon=True)
        watching.start()
        try:
            yield
        except Exception:
            if self._came_at is None:
                raise
        finally:
            ended.set()
            watching.join()
        if self._came_at is not None:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._prompting:
            raise KeyboardInterrupt
        if self._came_at is None:
            self._came_at = now
        elif now - self._came_at > _SECOND:
            leave_at_once()


def leave_at_once() -> None:
    """Ends this process and Spark's JVM, in whose hands the workers are, and which would take its time to leave."""
    pyspark = sys.modules.get("pyspark")  # which is not imported only for that
    process = getattr(pyspark and pyspark.SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
    os._exit(exits.INTERRUPTED)
