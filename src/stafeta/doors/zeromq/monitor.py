"""A log line for each connection of a ZeroMQ socket, and for each that failed."""

import asyncio
import logging
import os
import socket as sockets

import zmq
from zmq.utils.monitor import parse_monitor_message

from stafeta.logs import fields

WANTED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_ACCEPT_FAILED
)
FAILED = "a connection was closed: what came is not ZeroMQ"


class Monitor:
    def __init__(self, socket: "zmq.Socket[bytes]", log: logging.Logger) -> None:
        self._socket = socket
        self._log = log
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

    def _drain(self) -> None:
        try:
            while True:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
                self._tell(event["event"], event["value"])
        except zmq.Again:
            pass

    def _tell(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._peers[value] = peer = _peer(value)
            self._log.info("connected", extra=fields(peer=peer))
        elif event == zmq.EVENT_DISCONNECTED:
            self._log.info("disconnected", extra=fields(peer=self._peers.pop(value, "unknown")))
        elif event == zmq.EVENT_ACCEPT_FAILED:
            self._log.error("a connection could not be accepted: %s", os.strerror(value))
        else:
            self._log.warning(FAILED)


def _peer(descriptor: int) -> str:
    copy = None
    try:
        copy = os.dup(descriptor)
        with sockets.socket(fileno=copy) as connection:
            copy = None  # the socket closes it
            host, port, *_ = connection.getpeername()
            return f"{host}:{port}"
    except OSError:  # gone already, and perhaps the descriptor is something else's by now
        return "unknown"
    finally:
        if copy is not None:
            os.close(copy)
