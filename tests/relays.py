"""Wires between clients and a broker, for tests to cut."""

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from stafeta.clients.closing import Closing


class Relay(Closing, ABC):
    """Passes TCP connections on to the broker, each direction in a thread of its own."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        self.changed = threading.Condition()
        self.wires: list[
            socket.socket
        ] = []  # the client's end and the broker's end of each connection, in turn
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @abstractmethod
    def limits(self) -> tuple[int, int]:
        """For a new connection: how many bytes pass to the broker, and from it, before it may be cut. `changed` is
        held."""

    @abstractmethod
    def pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        """Pass on what comes, until it ends or is cut."""

    def close(self) -> None:
        hang_up(self._listener)
        self._threads[0].join()
        hang_up(*self.wires)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self.wires):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._broker)
            except OSError:
                client.close()
                continue
            with self.changed:
                self.wires += [client, broker]
                sent, received = self.limits()
            for ends in ((client, broker, sent), (broker, client, received)):
                self._threads.append(threading.Thread(target=self._run, args=ends))
                self._threads[-1].start()

    def _run(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            self.pump(source, target, left)
        hang_up(source, target)


def hang_up(*sockets: socket.socket) -> None:
    """Ends connections. Their sockets are closed when nobody uses them any more."""
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
