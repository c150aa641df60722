"""The connections of a ZeroMQ socket: a log line for each, and for each that failed; and limits.

1. ZeroMQ takes every connection. One that is too many is shut down as soon as it is heard of. Where the system has no
   more files for any, ZeroMQ tries again at once, and says so each time: the log says it now and then.
2. One that has asked for nothing in time is shut down, too; a client of ZeroMQ that wants something later connects
   again by itself.
"""

import asyncio
import logging
import os
import socket as sockets
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from stafeta import addresses
from stafeta.config.options import Limits
from stafeta.logs import SeldomLog, fields

T = TypeVar("T")
Connection: TypeAlias = tuple[int, str]  # its descriptor, and who is at the other end

WANTED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_ACCEPT_FAILED
)
PORTION = 100  # events, or connections that are ended, before others get their turn
EVERYTHING = 1_000_000
SWEEP = 5.0  # seconds between two looks for connections that are silent
FAILURES = 200  # lines of the log of one kind about connections that failed, within ten seconds
FAILED = "a connection was closed: what came is not ZeroMQ"
_MISMATCHES = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): f"{FAILED}, or either side wants CURVE, not both",
    int(
        zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
    ): "a connection was closed: it expects another key of the broker's",
}


class Monitor:
    def __init__(
        self, socket: "zmq.Socket[bytes]", log: logging.Logger, limit: int, limits: Callable[[], Limits]
    ) -> None:
        self._socket = socket
        self._log = log
        self._limit = limit
        self._seldom = SeldomLog(log)
        self._failures = SeldomLog(log, times=FAILURES)
        self._limits = limits  # as they are now
        self.accepted = 0
        self.rejected: Counter[str] = Counter()  # by reason
        self._hosts: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._events = socket.get_monitor_socket(WANTED)
        self._peers: dict[int, str] = {}  # by file descriptor
        self._since: dict[int, float] = {}  # when those came that have asked for nothing yet
        self._last: dict[int, float] = {}  # when the others last were heard
        self.before_sweep: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._loop.add_reader(self._events.fileno(), self._drain)
        self._drain()
        self._sweep_later()

    def connection(self, descriptor: int) -> Connection:
        """What a connection is known by here, also when its descriptor has become another's."""
        if descriptor not in self._peers:
            self._drain(EVERYTHING)
        return descriptor, self._peers.get(descriptor, "")

    def heard(self, connection: Connection) -> None:
        """It has asked for something."""
        descriptor, peer = connection
        if self._peers.get(descriptor) == peer:
            self._since.pop(descriptor, None)
            self._last[descriptor] = self._loop.time()

    def end(self, connection: Connection) -> None:
        descriptor, peer = connection
        if self._peers.get(descriptor) == peer:
            _of(descriptor, _shut_down)

    def _sweep(self) -> None:
        """End those that have said nothing in time."""
        self.before_sweep()
        now, limits, more = self._loop.time(), self._limits(), False
        for times, most, option in (
            (self._since, limits.identify_timeout, "identify_timeout"),
            (self._last, limits.idle_timeout, "idle_timeout"),
        ):
            late = [one for one, since in times.items() if now - since >= most]
            more = more or len(late) > PORTION
            for descriptor in late[:PORTION]:
                del times[descriptor]
                peer = self._peers[descriptor]
                self.end((descriptor, peer))
                self._seldom.warning(
                    f"connections are closed that asked for nothing within limits.{option}", peer=peer
                )
        if more:
            self._timer = self._loop.call_later(0, self._sweep)
        else:
            self._sweep_later()

    def _sweep_later(self) -> None:
        limits = self._limits()
        wait = min(SWEEP, limits.identify_timeout, limits.idle_timeout)
        self._timer = self._loop.call_later(wait, self._sweep)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._events.fileno())
        self._socket.disable_monitor()
        self._events.close(0)

    @property
    def connections(self) -> int:
        return len(self._peers)

    def _drain(self, most: int = PORTION) -> None:
        try:
            for _ in range(most):
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
                self._tell(event["event"], event["value"])
        except zmq.Again:
            return
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self._drain()

    def _tell(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._forget(value)
            self._peers[value] = peer = _of(value, _peer) or "unknown"
            self._since[value] = self._loop.time()
            self._hosts[addresses.network_of(peer)] += 1
            if self._hosts[addresses.network_of(peer)] > self._limits().max_address_connections:
                self.rejected["address_limit"] += 1
                _of(value, _shut_down)
                self._seldom.warning(
                    "connections are refused: there are as many from their address as "
                    "limits.max_address_connections allows",
                    peer=peer,
                )
            elif len(self._peers) > self._limit:
                self.rejected["connection_limit"] += 1
                _of(value, _shut_down)
                self._seldom.warning(
                    "connections are refused: there are as many as limits.max_connections allows",
                    max_connections=self._limit,
                )
            else:
                self.accepted += 1
                self._log.info("connected", extra=fields(peer=peer))
        elif event == zmq.EVENT_DISCONNECTED:
            self._log.info("disconnected", extra=fields(peer=self._forget(value)))
        elif event == zmq.EVENT_ACCEPT_FAILED:
            self.rejected["system"] += 1
            self._seldom.error(
                f"connections cannot be accepted: {os.strerror(value)}",
                connections=len(self._peers),
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.rejected["authentication"] += 1  # who has refused it has said so
        else:
            self.rejected["handshake"] += 1
            mismatch = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value in _MISMATCHES
            self._failures.warning(_MISMATCHES[value] if mismatch else FAILED)

    def _forget(self, value: int) -> str:
        peer = self._peers.pop(value, "unknown")
        self._since.pop(value, None)
        self._last.pop(value, None)
        host = addresses.network_of(peer)
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]
        return peer


def _shut_down(connection: sockets.socket) -> None:
    connection.shutdown(sockets.SHUT_RDWR)


def _peer(connection: sockets.socket) -> str:
    return addresses.peer(connection.getpeername())


def _of(descriptor: int, do: Callable[[sockets.socket], T]) -> T | None:
    """Do something with a connection of ZeroMQ's, which has it and closes it. None where it is gone already; its
    descriptor may be something else's by now."""
    copy = None
    try:
        copy = os.dup(descriptor)
        with sockets.socket(fileno=copy) as connection:
            copy = None  # the socket closes it
            return do(connection)
    except OSError:
        return None
    finally:
        if copy is not None:
            os.close(copy)
