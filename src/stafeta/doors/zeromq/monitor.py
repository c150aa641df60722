"""The connections of a ZeroMQ socket: a log line for each, and for each that failed; and a limit.

ZeroMQ takes every connection. One that is too many is shut down as soon as it is heard of. Where the system has no more
files for any, ZeroMQ tries again at once, and says so each time: the log says it now and then.
"""

import asyncio
import logging
import os
import socket as sockets
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from stafeta import addresses
from stafeta.logs import SeldomLog, fields

T = TypeVar("T")

WANTED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_ACCEPT_FAILED
)
FAILED = "a connection was closed: what came is not ZeroMQ"
_MISMATCHES = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): f"{FAILED}, or either side wants CURVE, not both",
    int(
        zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
    ): "a connection was closed: it expects another key of the broker's",
}


class Monitor:
    def __init__(
        self, socket: "zmq.Socket[bytes]", log: logging.Logger, limit: int, by_address: Callable[[], int]
    ) -> None:
        self._socket = socket
        self._log = log
        self._limit = limit
        self._seldom = SeldomLog(log)
        self._by_address = by_address  # how many may come from one address
        self.accepted = 0
        self.rejected: Counter[str] = Counter()  # by reason
        self._hosts: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._events = socket.get_monitor_socket(WANTED)
        self._peers: dict[int, str] = {}  # by file descriptor

    def start(self) -> None:
        self._loop.add_reader(self._events.fileno(), self._drain)
        self._drain()

    def close(self) -> None:
        self._loop.remove_reader(self._events.fileno())
        self._socket.disable_monitor()
        self._events.close(0)

    @property
    def connections(self) -> int:
        return len(self._peers)

    def _drain(self) -> None:
        try:
            while True:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
                self._tell(event["event"], event["value"])
        except zmq.Again:
            pass

    def _tell(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._forget(value)
            self._peers[value] = peer = _of(value, _peer) or "unknown"
            self._hosts[_host(peer)] += 1
            if self._hosts[_host(peer)] > self._by_address():
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
            self._log.warning(_MISMATCHES[value] if mismatch else FAILED)

    def _forget(self, value: int) -> str:
        peer = self._peers.pop(value, "unknown")
        host = _host(peer)
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]
        return peer


def _shut_down(connection: sockets.socket) -> None:
    connection.shutdown(sockets.SHUT_RDWR)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


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
