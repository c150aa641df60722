"""Many subscribers in one loop: what they get is counted, and the first one's looked at."""

import select
import socket
from collections.abc import Sequence
from time import perf_counter

from benchmarks.load import LoadFailed, Pace
from benchmarks.publishers import Publisher
from benchmarks.readings import in_order

_PATIENCE = 10.0
_MOST = 1 << 18  # bytes of a reader at a time


class Crowd:
    """Connections that have subscribed to the same topic, `size` bytes for each reading."""

    def __init__(self, lines: Sequence[socket.socket], size: int) -> None:
        self._size = size
        self._lines = {line.fileno(): line for line in lines}
        self._receive = {number: line.recv_into for number, line in self._lines.items()}
        self._first = lines[0].fileno()
        self._scratch = memoryview(bytearray(_MOST))
        self._epoll = select.epoll(len(lines))
        for number, line in self._lines.items():
            line.setblocking(False)
            self._epoll.register(number, select.EPOLLIN)
        self._forget()

    def deliver(self, publisher: Publisher, ahead: int, seconds: float) -> Pace:
        """Publishes for so long, never more than `ahead` of the readers; then waits until all have everything."""
        self._forget()
        each = self._size * len(self._lines)
        first, sent = publisher.sent, 0
        start = perf_counter()
        deadline = start + seconds
        while True:
            if perf_counter() < deadline:
                room = ahead - (sent - self._total // each)
                if room >= max(ahead // 4, 1):
                    publisher.send(room)
                    sent += room
            elif self._total >= sent * each:
                break
            self._read()
        took = perf_counter() - start
        if set(self._counts.values()) != {sent * self._size}:
            raise LoadFailed(f"Not every subscriber has got the {sent:,} readings, no more and no less.")
        if not in_order(self._kept, self._size, first):
            raise LoadFailed("A subscriber has got readings that are not as they were sent.")
        return Pace(sent * len(self._lines), took)

    def close(self) -> None:
        self._epoll.close()
        for line in self._lines.values():
            line.close()

    def _forget(self) -> None:
        self._counts = dict.fromkeys(self._lines, 0)
        self._total = 0
        self._kept = bytearray()

    def _read(self) -> None:
        ready = self._epoll.poll(_PATIENCE)
        if not ready:
            raise LoadFailed(f"{self._total:,} bytes have come, and then nothing for {_PATIENCE:g} s.")
        counts, scratch, receive = self._counts, self._scratch, self._receive
        total = 0
        for number, _ in ready:
            taken = receive[number](scratch)
            if not taken:
                raise LoadFailed("The broker has closed a connection.")
            counts[number] += taken
            total += taken
            if number == self._first:
                self._kept += scratch[:taken]
        self._total += total
