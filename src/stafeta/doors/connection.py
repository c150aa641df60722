"""What the connections of a pushing door have in common."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from stafeta import addresses
from stafeta.doors.delivery import Dispatcher, Encoder, PushSession
from stafeta.doors.figures import DoorFigures
from stafeta.doors.tls import Certificates, certified_name
from stafeta.errors import NotAuthenticated
from stafeta.logs import fields

if TYPE_CHECKING:
    from stafeta.broker import Gate, Verbs

# After so many seconds of silence a peer is asked whether it is there, so often, before its connection is ended.
KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
SWEEP: Final = 5.0  # seconds between two looks for connections that are silent
REPORT: Final = 10.0  # seconds between two log lines that say the same
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
        self.accepted = 0
        self.rejected: Counter[str] = Counter()  # by reason: those that were refused, or ended
        self._by_host: Counter[str] = Counter()
        self._refused: dict[str, float] = {}  # when the log said why some are refused or ended
        self._full = False
        self._loop = asyncio.get_running_loop()
        # Those that have said nothing yet, and since when; and those that were silent when it was last looked.
        self._silent: dict[PushedConnection, float] = {}
        self._idle: dict[PushedConnection, None] = {}
        self._swept = self._loop.time()
        self._sweep_later()
        broker.security.on_change(self._users_changed)

    def _users_changed(self) -> None:
        """End those who would not be let in any more."""
        for connection in list(self.all):
            connection.end_unless_alive()

    def admit(self, connection: "PushedConnection") -> bool:
        """False where there are too many already."""
        self.all[connection] = None
        connection.host = connection.peer.rpartition(":")[0]
        self._by_host[connection.host] += 1
        most = self.broker.limits.max_address_connections
        if self._by_host[connection.host] > most:
            self.rejected["address_limit"] += 1
            self._say(
                "connections are refused: there are as many from their address as limits.max_address_connections "
                "allows",
                peer=connection.peer,
            )
            return False
        if len(self.all) <= self.limit:
            self._full = False
            self._silent[connection] = self._loop.time()
            self.accepted += 1
            return True
        self.rejected["connection_limit"] += 1
        if not self._full:  # once for all that come while it is so
            self._full = True
            self.log.warning(
                "connections are refused: there are as many as limits.max_connections allows",
                extra=fields(max_connections=self.limit),
            )
        return False

    def _say(self, sentence: str, **details: object) -> None:
        """A warning, but not again and again: strangers cause any number."""
        now = self._loop.time()
        if now - self._refused.get(sentence, -REPORT) >= REPORT:
            self._refused[sentence] = now
            self.log.warning(sentence, extra=fields(**details))

    def has_spoken(self, connection: "PushedConnection") -> None:
        """It has said something that could be read."""
        self._silent.pop(connection, None)

    def let_go(self, connection: "PushedConnection") -> None:
        """It has gone."""
        del self.all[connection]
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]

    def _sweep(self) -> None:
        """End those that have said nothing in time."""
        now, limits = self._loop.time(), self.broker.limits
        for connection, since in list(self._silent.items()):
            if now - since < limits.identify_timeout:
                break  # those behind it came later
            self.rejected["identify_timeout"] += 1
            self._say(
                "connections are closed that said nothing within limits.identify_timeout",
                peer=connection.peer,
            )
            connection.transport.abort()
            self._silent.pop(connection, None)
        if now - self._swept >= limits.idle_timeout:
            self._swept = now
            for connection in [one for one in self._idle if not one.spoken and one.session is None]:
                self.rejected["idle_timeout"] += 1
                self._say(
                    "connections are closed that were silent for limits.idle_timeout", peer=connection.peer
                )
                connection.transport.abort()
            self._idle = dict.fromkeys(self.all)
            for connection in self._idle:
                connection.spoken = False
        self._sweep_later()

    def _sweep_later(self) -> None:
        limits = self.broker.limits
        wait = min(SWEEP, limits.identify_timeout, limits.idle_timeout)
        self._timer = self._loop.call_later(wait, self._sweep)

    def figures(
        self, certificates: Certificates | None, dropped: Mapping[str, int] | None = None
    ) -> DoorFigures:
        """`certificates` are those of the door, whose handshakes fail before anything else can."""
        rejected = self.rejected + Counter({} if certificates is None else certificates.rejected)
        rejected["lagging"] += self.dispatcher.lagging
        return DoorFigures(self.door, len(self.all), self.accepted, rejected, dropped or {})

    async def close(self) -> None:
        """Let them take what is on its way, and let them go."""
        self._timer.cancel()
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

    __slots__ = ("_connections", "_paused", "_verbs", "host", "peer", "session", "spoken", "transport")

    transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.session: PushSession | None = None
        self._paused = False
        self._verbs: Verbs | None = None
        self.spoken = False  # since that was last looked at
        self.peer = self.host = ""

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
            self._connections.rejected["authentication"] += 1
            self._connections.log.warning("a connection is closed: %s", error, extra=fields(peer=self.peer))
            self.transport.abort()

    def deliver(self, client: str, encoder: Encoder) -> PushSession:
        """Begin to push what the client subscribes to."""
        self.session = PushSession(self._connections.dispatcher, self.verbs, client, self.transport, encoder)
        if self._paused:
            self.session.pause()
        return self.session

    def has_spoken(self) -> None:
        """Something has come from it that could be read."""
        if not self.spoken:
            self.spoken = True
            self._connections.has_spoken(self)

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
        self._connections.let_go(self)
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
