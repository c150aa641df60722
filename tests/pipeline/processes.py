"""Everything that a test has started, however deep below it, and whether or not its parents live.

A mark in the environment is inherited by whatever a process starts: JVMs, executors, Python workers. Process groups
are not: Spark's Python daemon makes one of its own.
"""

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Self

import psutil

from stafeta.clients.closing import Closing
from tests.waiting import wait_until

_NAME = "RUN_OF_STAFETA_TESTS"


class Family(Closing):
    """The processes that were started with `environment()`, and theirs. None of them outlives the `with`."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def environment(self) -> dict[str, str]:
        """This process's own environment, with the mark added to those that it has itself."""
        return dict(os.environ) | {_NAME: f"{os.environ.get(_NAME, '')} {self.mark}"}

    def members(self) -> list[psutil.Process]:
        return [process for process in _others() if self.mark in _environment(process).get(_NAME, "")]

    def kill(self) -> None:
        """SIGKILL to each of them, and to what they start meanwhile; waits until all are gone."""

        def none_left() -> bool:
            left = self.members()
            for process in left:
                send(process, signal.SIGKILL)
            return not left

        wait_until(none_left)

    def close(self) -> None:
        self.kill()


class CommandLines(Closing):
    """Those of processes while it is on: who looks at them sees what everybody on the machine can see."""

    def __init__(
        self, processes: Callable[[], Iterable[psutil.Process]] = psutil.process_iter, pause: float = 1.0
    ) -> None:
        self.seen: set[str] = set()
        self._processes = processes
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def having(self, text: str) -> list[str]:
        return [line for line in self.seen if text in line]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._pause):
            self.seen |= {" ".join(command(process)) for process in self._processes()}


def below(pid: int) -> list[psutil.Process]:
    """A process and all that it has started; none, if it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal, unless it has ended. psutil does not take another process with its number for it."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty, if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _others() -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # it has ended, or is somebody else's
        return {}
