"""Waiting for what other threads do, by threads and by tasks of asyncio alike.

1. State that several threads share is looked at and changed under the lock of its signal (`with
   signal.lock`); whoever changes what another may wait for notifies. Where it is clear who that is, for every message,
   it wakes no others.
2. What waits is written once, as a generator: it runs under the lock, yields for how many seconds it would wait at
   most (None: for ever) and is resumed when the signal was notified or that time is over. `wait` runs it in a thread,
   where Ctrl-C ends it, and `wait_async` in a task, where a cancellation does.
3. Ctrl-C can come between any two steps of Python. The lock is held by `with` alone, on an object whose methods are in
   C: `Condition.wait`, or an `__enter__` of our own, could be left half-way, and the lock held or let go for good.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from stafeta.clients import forks

_POLL_INTERVAL: Final = 0.5  # seconds
_T = TypeVar("_T")
Waiting: TypeAlias = Generator[float | None, None, _T]


class Signal:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._threads = threading.Condition(self.lock)
        self._listeners: set[Callable[[], object]] = set()

    def notify_all(self) -> None:
        """Wakes everyone. The signal's lock is held, here and in what follows."""
        self.notify_workers()
        self.notify_waiters()

    def notify_workers(self) -> None:
        """Wakes the threads that pause."""
        self._threads.notify_all()

    def notify_waiters(self) -> None:
        """Wakes what waits."""
        for listener in self._listeners:
            with suppress(RuntimeError):  # its event loop was closed meanwhile
                listener()

    def pause(self, seconds: float | None) -> None:
        """Lets a thread of the client's own sleep until it is notified, or for so long. The lock is free meanwhile."""
        self._threads.wait(seconds)

    def wait(self, waiting: Waiting[_T]) -> _T:
        """Runs what waits in this thread."""
        forks.check_grpc()
        silence = threading.Lock()
        silence.acquire()

        def listener() -> None:
            if silence.locked():
                silence.release()

        try:
            with self.lock:
                self._listeners.add(listener)
            while True:
                with self.lock:
                    seconds = next(waiting)
                # Ctrl-C that comes just before this would be seen only when it ends.
                silence.acquire(timeout=_POLL_INTERVAL if seconds is None else min(seconds, _POLL_INTERVAL))
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            with self.lock:
                self._listeners.discard(listener)
                waiting.close()

    async def wait_async(self, waiting: Waiting[_T]) -> _T:
        """Runs what waits in this task."""
        forks.check_grpc()
        loop = asyncio.get_running_loop()
        notified = asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(notified.set)

        with self.lock:
            self._listeners.add(listener)
        try:
            while True:
                notified.clear()
                with self.lock:
                    seconds = next(waiting)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await notified.wait()
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            with self.lock:
                self._listeners.discard(listener)
                waiting.close()


def left(deadline: float | None) -> float | None:
    """The seconds until a time of `time.monotonic`, at least 0; None where there is no such time."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
