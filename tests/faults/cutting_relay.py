"""A wire between a Flight client and a broker that is cut after so many bytes."""

import socket
import threading

from tests.relays import Relay

_NEVER = 1 << 62


class CuttingRelay(Relay):
    """The first connection is cut once so many bytes have passed; others are not."""

    def __init__(self, broker: tuple[str, int], *, sent: int = _NEVER, received: int = _NEVER) -> None:
        self._limits = sent, received
        self.cut = threading.Event()
        super().__init__(broker)

    def limits(self) -> tuple[int, int]:
        limits, self._limits = self._limits, (_NEVER, _NEVER)
        return limits

    def pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        while left and (data := source.recv(min(left, 65536))):
            target.sendall(data)
            left -= len(data)
        if not left:
            self.cut.set()
