"""Handing messages over to whoever reads standard output, so that only what was taken is acknowledged.

1. What goes to a file or a terminal is taken when it is written. What goes into a pipe is taken when its reader has
   read it: Linux tells how many bytes wait in a pipe, at the end that is written to as well (FIONREAD).
2. Others may write into the same pipe: what they wrote and nobody has read counts as ours, so it is never too much.
3. A reader takes what is there, wanted or not. So portions are small at first, and then a part of those before them:
   `head -5` has taken five messages when it leaves, and whoever reads a million hardly waits.
"""

import errno
import fcntl
import os
import select
import stat
import struct
import sys
import termios
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeVar

from stafeta.backoff import Backoff
from stafeta.cli.streams import Unwritable, write_some

_T = TypeVar("_T")
_PART: Final = 64
_SHORTEST: Final = 0.00005  # seconds between two looks at whether the pipe is empty
_LONGEST: Final = 0.05


class Handover:
    """Standard output, and how much of it has been taken."""

    def __init__(self) -> None:
        self._descriptor = sys.stdout.fileno()
        self._pipe = stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(self._descriptor, 0)  # only errors: nobody reads any more
        self._error: Unwritable | None = None
        self._total = 0

    def portions(self, messages: Sequence[_T]) -> Iterator[Sequence[_T]]:
        """What to hand over together of these."""
        at = 0
        while at < len(messages):
            size = 1 + self._total // _PART
            yield messages[at : at + size]
            at += size

    def give(self, messages: Sequence[bytes]) -> int:
        """Writes messages and waits until they are taken; returns how many were. Where that is not all,
        `check_written` raises why."""
        sys.stdout.flush()
        written = self._write(b"".join(messages))
        taken = written - self._left() if self._pipe else written
        count = bisect_right(list(accumulate(map(len, messages))), taken)
        self._total += count
        if count < len(messages) and self._error is None:
            self._error = _nobody()
        return count

    def check_written(self) -> None:
        """Raises `Unwritable` where something could not be handed over."""
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Raises it also where nobody reads any more."""
        self.check_written()
        if self._pipe and self._poll.poll(0):
            raise _nobody()

    def _write(self, data: bytes) -> int:
        view, at = memoryview(data), 0
        try:
            while at < len(view):
                at += write_some(self._descriptor, view[at:])
        except Unwritable as error:
            self._error = error
        return at

    def _left(self) -> int:
        """What is in the pipe when nobody will take more of it."""
        pauses = Backoff(_SHORTEST, _LONGEST)
        while self._waiting() and not self._poll.poll(0):
            time.sleep(pauses.longer())
        return self._waiting()

    def _waiting(self) -> int:
        (number,) = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))
        return int(number)


def _nobody() -> Unwritable:
    return Unwritable(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
