"""Publishers of readings that cost little: made once, sent many in one system call, at a pace or as fast as they may.

1. A publisher sends its readings in turn, over and over. The place of a reading in that stream is its number.
2. What is sent together lies together in memory; only the numbers in it are written anew.
"""

import ctypes
import os
import socket
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from itertools import count, pairwise
from time import perf_counter, sleep
from typing import NamedTuple, Protocol, Self

from benchmarks.load import LoadFailed
from benchmarks.readings import DIGITS, Reading, number

_SLOTS = 1 << 11
_TICK = 0.001  # seconds between two portions of a paced stream


class Publisher(Protocol):
    """Sends the next readings of its stream."""

    sent: int

    def send(self, total: int) -> None: ...
    def close(self) -> None: ...


class _Ring:
    """The packets of a stream, one after the other in memory, again and again."""

    def __init__(self, readings: Sequence[Reading], packets: Sequence[bytes], slots: int) -> None:
        repeated = [packets[slot % len(packets)] for slot in range(slots)]
        self.memory = bytearray(b"".join(repeated))
        self.bounds = [0]
        for packet in repeated:
            self.bounds.append(self.bounds[-1] + len(packet))
        of = [readings[slot % len(readings)] for slot in range(slots)]
        # Where the number goes; a reading's content is the end of its packet.
        self._places = [
            end - len(reading.content) if reading.numbered else None
            for reading, end in zip(of, self.bounds[1:], strict=True)
        ]

    def write_numbers(self, slot: int, total: int, first: int) -> None:
        memory = self.memory
        for place, each in zip(self._places[slot : slot + total], count(first), strict=False):
            if place is not None:
                memory[place : place + DIGITS] = number(each)


class _Portioned(ABC):
    """Sends from a ring, as much at once as lies together."""

    def __init__(self, readings: Sequence[Reading], packets: Sequence[bytes]) -> None:
        self.sent = 0
        self._slots = len(packets) * max(_SLOTS // len(packets), 1)
        self._ring = _Ring(readings, packets, self._slots)

    def send(self, total: int) -> None:
        """Sends the next so many."""
        while total:
            slot = self.sent % self._slots
            portion = min(total, self._slots - slot)
            self._ring.write_numbers(slot, portion, self.sent)
            self._transmit(slot, portion)
            self.sent += portion
            total -= portion

    @abstractmethod
    def _transmit(self, slot: int, total: int) -> None: ...


class Stream(_Portioned):
    """Over a connection."""

    def __init__(self, line: socket.socket, readings: Sequence[Reading], packets: Sequence[bytes]) -> None:
        super().__init__(readings, packets)
        self.line = line
        self._view = memoryview(self._ring.memory)

    def close(self) -> None:
        self.line.close()

    def _transmit(self, slot: int, total: int) -> None:
        bounds = self._ring.bounds
        self.line.sendall(self._view[bounds[slot] : bounds[slot + total]])


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr"""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Header(ctypes.Structure):
    """struct mmsghdr"""

    _fields_ = (("message", _Message), ("sent", ctypes.c_uint))


class Datagrams(_Portioned):
    """By UDP, with sendmmsg, which only Linux has."""

    def __init__(
        self, address: tuple[str, int], readings: Sequence[Reading], packets: Sequence[bytes]
    ) -> None:
        super().__init__(readings, packets)
        self._line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._line.connect(address)
        self._library = ctypes.CDLL(None, use_errno=True)
        self._memory = (ctypes.c_char * len(self._ring.memory)).from_buffer(self._ring.memory)
        start = ctypes.addressof(self._memory)
        self._vectors = (_Vector * self._slots)(
            *(_Vector(start + begin, end - begin) for begin, end in pairwise(self._ring.bounds))
        )
        self._headers = (_Header * self._slots)()
        for header, vector in zip(self._headers, self._vectors, strict=True):
            header.message = _Message(vectors=ctypes.pointer(vector), vector_count=1)

    def close(self) -> None:
        self._line.close()

    def _transmit(self, slot: int, total: int) -> None:
        while total:
            headers = ctypes.byref(self._headers, slot * ctypes.sizeof(_Header))
            done = self._library.sendmmsg(self._line.fileno(), headers, total, 0)
            if done < 0:
                raise LoadFailed(f"The datagrams cannot be sent: {os.strerror(ctypes.get_errno())}.")
            slot, total = slot + done, total - done


class Sent(NamedTuple):
    """When a paced stream was sent."""

    times: "array[float]"  # of each portion
    totals: "array[int]"  # readings sent by then

    @property
    def rate(self) -> float:
        """Readings a second that it came to."""
        return self.totals[-1] / max(self.times[-1] - self.times[0], _TICK)

    @classmethod
    def nothing(cls) -> Self:
        return cls(array("d"), array("q"))


def paced(publisher: Publisher, rate: float, total: int) -> Sent:
    """Sends so many readings at an even pace; what it is late with it sends at once."""
    log = Sent.nothing()
    start = perf_counter()
    done = 0
    while done < total:
        now = perf_counter()
        portion = min(int((now - start) * rate) + 1, total) - done
        if portion > 0:
            publisher.send(portion)
            done += portion
            log.times.append(now)
            log.totals.append(done)
        sleep(_TICK)
    return log
