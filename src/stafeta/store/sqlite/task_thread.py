"""A thread that does one thing after the other for an event loop.

An executor of the standard library does the same by way of another future, with its condition, on each side.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Worker:
    """Its thread begins with the first call, and ends with `shutdown`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = 0  # calls whose results the loop does not have yet

    @property
    def idle(self) -> bool:
        """True where nothing is under way: the loop may then do itself what it would ask for."""
        return not self._left

    def do(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Its result is the call's. What is under way is finished, also if nobody waits for it any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._left += 1
        self._work.put((loop, done, call))
        return done

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._do(*work)
            del work  # not to hold it until there is something to do again

    def shutdown(self) -> None:
        """Wait for what is under way, and end."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _do(
        self, loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]", call: Callable[[], Any]
    ) -> None:
        result: Any = None
        failed: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._settle, done, result, failed)

    def _settle(self, done: "asyncio.Future[Any]", result: object, failed: BaseException | None) -> None:
        self._left -= 1
        if done.cancelled():
            return
        if failed is None:
            done.set_result(result)
        else:
            done.set_exception(failed)
