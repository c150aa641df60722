"""One connection whose whole stream is kept, to be looked at when all has come."""

import mmap
import socket
import struct
from array import array
from collections.abc import Callable
from time import perf_counter

_QUIET = 20  # seconds without a byte after which nothing more is expected


def patient(line: socket.socket, seconds: int = _QUIET) -> None:
    """Has `recv` give up (BlockingIOError) after a quiet while, at no cost otherwise."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


class Inbox:
    """Room for so many bytes, which are in memory before the first one comes."""

    def __init__(self, size: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, size, flags=_FLAGS))
        self.times = array("d")  # of each part that came
        self.ends = array("q")  # how much there was then
        self.size = 0

    @property
    def stream(self) -> memoryview:
        return self._memory[: self.size]

    def clear(self) -> None:
        self.times, self.ends, self.size = array("d"), array("q"), 0

    def fill(
        self,
        line: socket.socket,
        total: int,
        answer: Callable[[memoryview, int], None] | None = None,
        *,
        quiet: int = _QUIET,
    ) -> bool:
        """Reads so many bytes; False if the connection ends before, or nothing comes for `quiet` seconds.

        `answer` is called after each part of it, with what there is so far and where the new part begins.
        """
        patient(line, quiet)
        memory, times, ends = self._memory[:total], self.times, self.ends
        size = self.size
        try:
            while size < total:
                begin = size
                taken = line.recv_into(memory[size:])
                times.append(perf_counter())
                if not taken:
                    return False
                size += taken
                ends.append(size)
                if answer is not None:
                    answer(memory[:size], begin)
        except BlockingIOError:
            return False
        finally:
            self.size = size
        return True


_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
