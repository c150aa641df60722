"""A wire between a client and a broker that a test can cut, or make swallow what the broker says."""

import socket
from urllib.parse import urlsplit

from tests import relays
from tests.waiting import PATIENCE


class Relay(relays.Relay):
    """Passes TCP connections on to the broker at `upstream`."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self._mute: set[socket.socket] = set()
        self.accepted = 0
        self.swallowed = 0
        super().__init__((parts.hostname, parts.port))
        self.address = f"tcp://127.0.0.1:{self.place[1]}"

    def swallow(self) -> None:
        """From now on nothing that the broker says on the present connections arrives. New ones are not affected."""
        with self.changed:
            self._mute.update(self.wires[1::2])

    def wait_until_swallowed(self) -> None:
        """Waits until the broker has said something that did not arrive."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.swallowed > 0, PATIENCE)

    def cut(self) -> None:
        """Ends the present connections."""
        with self.changed:
            present = list(self.wires)
        relays.hang_up(*present)

    def limits(self) -> tuple[int, int]:
        self.accepted += 1
        return 0, 0

    def pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        while data := source.recv(65536):
            with self.changed:
                if source in self._mute:
                    self.swallowed += len(data)
                    self.changed.notify_all()
                    continue
            target.sendall(data)
