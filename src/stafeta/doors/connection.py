"""What the connections of a pushing door have in common."""

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

from stafeta import addresses
from stafeta.doors.delivery import Dispatcher, Encoder, PushSession
from stafeta.doors.tls import certified_name
from stafeta.errors import NotAuthenticated
from stafeta.logs import fields

if TYPE_CHECKING:
    from stafeta.broker import Gate, Verbs

# After so many seconds of silence a peer is asked whether it is there, so often, before its connection is ended.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
CLOSE_TIMEOUT: Final = 0.25  # seconds for connections to take what is on its way when the door closes


class Connections:
    """Those that a door has, and how it lets them go; there are at most `limit`. One that takes nothing of what is on
    its way for `peer_timeout` seconds is ended."""

    def __init__(
        self,
        broker: "Gate",
        buffer: int,
        limit: int,
        peer_timeout: float,
        log: logging.Logger,
        door: str = "",
    ) -> None:
        self.broker = broker
        self.door = door
        self.dispatcher = Dispatcher(broker, buffer)
        self.limit = limit
        self.peer_timeout = peer_timeout
        self.log = log
        self.all: dict[PushedConnection, None] = {}
        self._full = False
        broker.security.on_change(self._users_changed)

    def _users_changed(self) -> None:
        """End those who would not be let in any more."""
        for connection in list(self.all):
            connection.end_unless_alive()

    def admit(self, connection: "PushedConnection") -> bool:
        """False where there are too many already."""
        self.all[connection] = None
        if len(self.all) <= self.limit:
            self._full = False
            return True
        if not self._full:  # once for all that come while it is so
            self._full = True
            self.log.warning(
                "connections are refused: there are as many as limits.max_connections allows",
                extra=fields(max_connections=self.limit),
            )
        return False

    async def close(self) -> None:
        """Let them take what is on its way, and let them go."""
        self.broker.security.forget_listener(self._users_changed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for connection in list(self.all):
                    while connection.busy:  # noqa: ASYNC110 - the kernel tells nobody when a peer has it all
                        await asyncio.sleep(0.005)
        for connection in list(self.all):
            connection.transport.abort()


class PushedConnection(asyncio.Protocol):
    """One connection that messages are pushed to, from when `deliver` is called."""

    __slots__ = ("_connections", "_paused", "_verbs", "peer", "session", "transport")

    transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.session: PushSession | None = None
        self._paused = False
        self._verbs: Verbs | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class
        self.peer = addresses.peer(transport.get_extra_info("peername"))
        _prepare(transport.get_extra_info("socket"), self._connections.peer_timeout)
        if not self._connections.admit(self):
            self.transport.abort()

    @property
    def verbs(self) -> "Verbs":
        """What whoever is at the other end may do. Raises `NotAuthenticated` where nobody knows who that is, and the
        first time it is asked for that, there is something from him to be carried out."""
        if self._verbs is None:
            connections = self._connections
            principal = connections.broker.security.identify(
                door=connections.door, address=self.peer, certificate_name=certified_name(self.transport)
            )
            self._verbs = connections.broker.for_principal(principal)
        return self._verbs

    def end_unless_alive(self) -> None:
        try:
            if self._verbs is not None:
                self._verbs.check_alive()
        except NotAuthenticated as error:
            self._connections.log.warning("a connection is closed: %s", error, extra=fields(peer=self.peer))
            self.transport.abort()

    def deliver(self, client: str, encoder: Encoder) -> PushSession:
        """Begin to push what the client subscribes to."""
        self.session = PushSession(self._connections.dispatcher, self.verbs, client, self.transport, encoder)
        if self._paused:
            self.session.pause()
        return self.session

    @property
    def busy(self) -> bool:
        """True while something is on its way."""
        return self.transport.get_write_buffer_size() > 0 or (self.session is not None and self.session.busy)

    def pause_writing(self) -> None:
        self._paused = True
        if self.session is not None:
            self.session.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self.session is not None:
            self.session.resume()

    def eof_received(self) -> None:
        if self.session is not None:
            self.session.settle()

    def connection_lost(self, error: Exception | None) -> None:
        del self._connections.all[self]
        if self.session is not None:
            self.session.close()
            self._connections.dispatcher.broker.commit()


def milliseconds(seconds: float) -> int:
    """As sockets take them."""
    return min(round(seconds * 1000), 2**31 - 1)


def _prepare(peer: socket.socket, peer_timeout: float) -> None:
    """Nothing is held back to fill a packet, and a peer that was switched off is noticed: by asking it while nothing
    is on its way, and by its silence while something is."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds(peer_timeout))
