"""The worst network there is between a server and a subscriber: it passes on one byte at a time."""

import socket
import threading
from contextlib import suppress

from stafeta.clients.closing import Closing


class ByteRelay(Closing):
    """Takes one connection to `port`, and passes it on both ways with the kernel's buffers at their minimum."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.socket()
        _squeeze(self._listener)  # what it accepts inherits it
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        self.passed = 0  # bytes, to the subscriber
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # nobody came
        server = socket.socket()
        _squeeze(server)
        server.connect(self._server)
        with client, server:
            back = threading.Thread(target=self._pass_on, args=(client, server, 0))
            back.start()
            self._pass_on(server, client, 1)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, counted: int) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                for at in range(len(data)):
                    target.sendall(data[at : at + 1])
                    self.passed += counted
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _squeeze(one: socket.socket) -> None:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        one.setsockopt(socket.SOL_SOCKET, option, 1)  # the kernel makes it the least it allows
