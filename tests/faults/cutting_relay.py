"""A wire between a Flight client and a broker that is cut after so many bytes."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_NEVER = 1 << 62


class CuttingRelay:
    """Passes TCP connections on to the broker. The first is cut once so many bytes have passed; others are not."""

    def __init__(self, broker: tuple[str, int], *, sent: int = _NEVER, received: int = _NEVER) -> None:
        self._broker = broker
        self._limits = sent, received
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        self._wires: list[socket.socket] = []
        self.cut = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _hang_up(self._listener)
        self._threads[0].join()
        _hang_up(*self._wires)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._wires):
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
            sent, received = self._limits
            self._limits = _NEVER, _NEVER
            self._wires += [client, broker]
            for ends in ((client, broker, sent), (broker, client, received)):
                self._threads.append(threading.Thread(target=self._pump, args=ends))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
            if not left:
                self.cut.set()
        _hang_up(source, target)


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
