"""A wire between a client and a broker that breaks again and again."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class FlakyRelay:
    """Passes connections on to the broker. Each is cut once `limit` bytes have passed in one direction, `times` times;
    after that none is."""

    def __init__(self, broker: tuple[str, int], limit: int, times: int) -> None:
        self._broker = broker
        self._limit = limit
        self._times = times
        self.cuts = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._wires: list[socket.socket] = []
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
            broker = socket.create_connection(self._broker)
            self._wires += [client, broker]
            for ends in ((client, broker), (broker, client)):
                self._threads.append(threading.Thread(target=self._pump, args=ends))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        left = self._limit
        with suppress(OSError):
            while data := source.recv(65536):
                if len(data) >= left and self._may_cut():
                    target.sendall(data[:left])
                    break
                target.sendall(data)
                left = max(left - len(data), 0)
        _hang_up(source, target)

    def _may_cut(self) -> bool:
        with self._lock:
            may = self.cuts < self._times
            self.cuts += may
            return may


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
