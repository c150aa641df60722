"""A wire between a client and a broker that breaks again and again."""

import socket
import threading

from tests.relays import Relay


class FlakyRelay(Relay):
    """Each connection is cut once `limit` bytes have passed in one direction, `times` times; after that none is."""

    def __init__(self, broker: tuple[str, int], limit: int, times: int) -> None:
        self._limit = limit
        self._times = times
        self.cuts = 0
        self._lock = threading.Lock()
        super().__init__(broker)
        self.address = f"grpc://127.0.0.1:{self.place[1]}"

    def limits(self) -> tuple[int, int]:
        return self._limit, self._limit

    def pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        while data := source.recv(65536):
            if len(data) >= left and self._may_cut():
                target.sendall(data[:left])
                return
            target.sendall(data)
            left = max(left - len(data), 0)

    def _may_cut(self) -> bool:
        with self._lock:
            may = self.cuts < self._times
            self.cuts += may
            return may
