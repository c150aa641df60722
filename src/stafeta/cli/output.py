"""Standard output that nobody may be reading: lines wait here, and what else a program does goes on.

1. Lines come out whole and in order, even if the program ends while nobody reads: a pipe takes a piece of at most
   `PIPE_BUF` bytes all at once or not at all.
2. What comes together goes out together; nothing is held back.
"""

import os
import select
import threading
import time
from contextlib import suppress
from typing import Final

from stafeta.cli.streams import Unwritable, write_some

_PIECE: Final = select.PIPE_BUF


class Output:
    """Writes to a file descriptor from a thread of its own, which ends with the program."""

    def __init__(self, descriptor: int = 1, room: int = 256 * 1024) -> None:
        self._descriptor = descriptor
        self._room = room
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._size = 0  # of what has not been written
        self._error: Unwritable | None = None
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._ringer, False)
        threading.Thread(target=self._run, daemon=True).start()

    def fileno(self) -> int:
        """For `select`: readable once something was written, or cannot be. `check` silences it."""
        return self._bell

    @property
    def full(self) -> bool:
        """True while as much waits as should."""
        return self._size >= self._room

    @property
    def empty(self) -> bool:
        """True while nothing waits."""
        return self._size == 0

    def write(self, lines: bytes) -> None:
        """Writes one or more lines, each with its newline. Never waits."""
        if lines:
            with self._changed:
                self._lines.append(lines)
                self._size += len(lines)
                self._changed.notify_all()

    def check(self) -> None:
        """Raises `Unwritable` where writing failed."""
        if select.select([self._bell], [], [], 0)[0]:
            os.read(self._bell, 64)
        if self._error is not None:
            raise self._error

    def finish(self, timeout: float | None = None) -> None:
        """Waits until all is written."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._size and self._error is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._changed.wait(left)
        self.check()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._lines:
                        self._changed.wait()
                    text = b"".join(self._lines)
                    self._lines.clear()
                self._write_out(text)
                self._ring()
        except Unwritable as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._ring()

    def _write_out(self, text: bytes) -> None:
        at = 0
        while at < len(text):
            end = at + _PIECE
            end = len(text) if end >= len(text) else text.rfind(b"\n", at, end) + 1 or end
            written = write_some(self._descriptor, text[at:end])
            at += written
            with self._changed:
                self._size -= written
                self._changed.notify_all()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it rings already
            os.write(self._ringer, b"!")
