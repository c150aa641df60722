"""A wire between a client and a broker that a test can cut, or make swallow what the broker says."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from stafeta.clients.closing import Closing
from tests.waiting import PATIENCE


class Relay(Closing):
    """Passes TCP connections on to the broker at `upstream`."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._wires: list[tuple[socket.socket, socket.socket]] = []
        self._mute: set[socket.socket] = set()
        self.accepted = 0
        self.swallowed = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def swallow(self) -> None:
        """From now on nothing that the broker says on the present connections arrives. New ones are not affected."""
        with self._changed:
            self._mute.update(broker for _, broker in self._wires)

    def wait_until_swallowed(self) -> None:
        """Waits until the broker has said something that did not arrive."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.swallowed > 0, PATIENCE)

    def cut(self) -> None:
        """Ends the present connections."""
        with self._changed:
            wires, self._wires = self._wires, []
        for wire in wires:
            _hang_up(*wire)

    def close(self) -> None:
        _hang_up(self._listener)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            with self._changed:
                self._wires.append((client, broker))
                self.accepted += 1
            pumps = [
                threading.Thread(target=self._pump, args=ends)
                for ends in ((client, broker), (broker, client))
            ]
            self._threads += pumps
            for pump in pumps:
                pump.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with self._changed:
                    if source in self._mute:
                        self.swallowed += len(data)
                        self._changed.notify_all()
                        continue
                target.sendall(data)
        except OSError:
            pass
        _hang_up(source, target)


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
