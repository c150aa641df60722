"""Commands that run on a terminal while a test types."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

from tests.waiting import PATIENCE


class Terminal:
    """`stafeta` with these arguments on a terminal, and the person before it."""

    def __init__(
        self, environment: dict[str, str], prompt: str, *arguments: str, patience: float = PATIENCE
    ) -> None:
        self._prompt = prompt
        self._patience = patience
        self._screen, tty = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stafeta", *arguments],
            stdin=tty,
            stdout=tty,
            stderr=tty,
            env=environment | {"TERM": "dumb", "INPUTRC": os.devnull},
            start_new_session=True,
        )
        os.close(tty)
        self._unread = ""
        self.shown = ""
        """All that has appeared on the screen."""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def read_until(self, end: str) -> str:
        """What appears on the screen up to `end`."""
        deadline = time.monotonic() + self._patience
        while end not in self._unread:
            ready, _, _ = select.select([self._screen], [], [], deadline - time.monotonic())
            assert ready, f"{end!r} does not appear: {self._unread!r}"
            more = os.read(self._screen, 4096).decode()
            self._unread += more
            self.shown += more
        before, _, self._unread = self._unread.partition(end)
        return before

    def enter(self, line: str) -> list[str]:
        """Types a line; the lines that appear before the next prompt."""
        self.type(line + "\n")
        return self.read_until(self._prompt).splitlines()[1:]

    def interrupt(self) -> None:
        """Ctrl-C, until something happens: Python misses one that comes while it handles a key."""
        ready: list[int] = []
        while not ready:
            self.process.send_signal(signal.SIGINT)
            ready, _, _ = select.select([self._screen], [], [], 0.5)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)
