"""CURVE at the ZeroMQ door: who may connect is asked of this, on the loop, by ZAP (RFC 27).

1. ZeroMQ asks for each connection whose key is right, and waits; nothing of the connection is read before the answer.
2. The user id that ZeroMQ notes on each frame is the public key: whose request it is never depends on the name that a
   connection has given itself.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85

from stafeta.curve import KeyPair
from stafeta.errors import NotAuthenticated
from stafeta.logs import SeldomLog

ZAP: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
DOMAIN: Final = "stafeta"
PORTION: Final = 50  # connections asked for before others get their turn

Admit = Callable[[str, str], object]
"""Called with a public key and an address; raises `NotAuthenticated` where nobody is to come in with it."""


class Curve:
    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", keys: KeyPair, admit: Admit, log: logging.Logger
    ) -> None:
        self._keys = keys
        self._admit = admit
        self._log = SeldomLog(log)
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP)
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._drain()

    def secure(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket take nothing but CURVE, from when it is bound."""
        socket.curve_server = True
        socket.curve_secretkey = self._keys.secret.encode()
        socket.zap_domain = DOMAIN.encode()

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _drain(self) -> None:
        # The descriptor tells of changes only: whoever has sent, too, has to look again.
        for _ in range(PORTION):
            if self._socket.closed or not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            request = self._socket.recv_multipart(zmq.NOBLOCK)
            self._socket.send_multipart(self._answer(request), zmq.NOBLOCK)
        self._loop.call_soon(self._drain)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, _, address, _, mechanism, *credentials = [*request, *[b""] * 6][
            : max(len(request), 6)
        ]
        if version != VERSION or mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return [VERSION, number, b"500", b"what is asked is not understood", b"", b""]
        key = z85.encode(credentials[0]).decode()
        peer = address.decode("ascii", "replace")
        try:
            self._admit(key, peer)
        except NotAuthenticated as error:
            self._log.warning(f"a connection is refused: {error}", peer=peer)
            return [VERSION, number, b"400", b"the key is not known", b"", b""]
        return [VERSION, number, b"200", b"OK", key.encode(), b""]
