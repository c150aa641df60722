"""Strangers at the devices door: readings by UDP, messages by TCP in either dialect."""

import socket
import struct
from abc import abstractmethod
from collections import deque
from itertools import count
from typing import NamedTuple

from stafeta.addresses import Address
from tests.brokers import Doors
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.encrypted import connected
from tests.waiting import PATIENCE

STRING = 3
PROBES = "probe/"  # topics that show that a command has been carried out
PROBE = 0.02  # seconds between two datagrams for one

_probes = count(1)


def datagram(topic: str, type_: int, content: bytes) -> bytes:
    return topic.encode().ljust(50, b"\0") + bytes([type_]) + content


class Reading(NamedTuple):
    """What a device is told: who sent it, its type and its content, padded in the struct dialect."""

    source: str
    type: int
    content: bytes

    @property
    def text(self) -> str:
        if self.type != STRING:
            return ""
        return self.content.partition(b"\0")[0].decode(errors="backslashreplace")


class Device(Stranger):
    def __init__(self, broker: Doors, name: str) -> None:
        self._name = name.encode()
        self._broker = broker
        address = broker.door("devices")
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._udp.connect(address)
        self._tcp: socket.socket | None = None
        self._unread = b""
        self._received: deque[Received] = deque()
        self._probed: set[str] = set()

    @abstractmethod
    def identification(self) -> bytes: ...

    @abstractmethod
    def subscription(self, topic: str) -> bytes: ...

    @abstractmethod
    def unsubscription(self, topic: str) -> bytes: ...

    @abstractmethod
    def split(self, data: bytes) -> tuple[str, bytes, bytes] | None:
        """The first message's source and datagram, and the rest; None where it is not complete."""

    def subscribe(self, topic: str) -> None:
        self.connection.sendall(self.subscription(topic))
        self._settle()

    def unsubscribe(self, topic: str) -> None:
        self.connection.sendall(self.unsubscription(topic))
        self._settle()

    def resume(self, topic: str) -> None:
        self._connect()  # to say who it is is all that it takes

    def publish(self, topic: str, text: str) -> None:
        self.send(datagram(topic, STRING, text.encode()))

    def send(self, reading: bytes) -> None:
        self._udp.send(reading)

    @property
    def source(self) -> str:
        """Where its datagrams come from."""
        return str(Address(*self._udp.getsockname()[:2]))

    def receive(self, count: int) -> list[Received]:
        self.connection.settimeout(PATIENCE)
        while len(self._received) < count:
            self._read()
        return [self._received.popleft() for _ in range(len(self._received))]

    def close(self) -> None:
        self._udp.close()
        tcp, self._tcp = self._tcp, None
        if tcp is not None:
            tcp.shutdown(socket.SHUT_WR)
            tcp.settimeout(PATIENCE)
            while tcp.recv(65536):  # until the broker, too, has let go of the id
                pass
            tcp.close()

    @property
    def connection(self) -> socket.socket:
        """One that has said who it is. Who only publishes has none."""
        return self._tcp or self._connect()

    def _connect(self) -> socket.socket:
        self._tcp = connected(self._broker, "devices", PATIENCE)
        self._tcp.sendall(self.identification())
        return self._tcp

    def _settle(self) -> None:
        """Nothing is answered, but commands are carried out in order: one more subscription, until it works."""
        probe = f"{PROBES}{next(_probes)}"
        self.connection.sendall(self.subscription(probe))
        self.connection.settimeout(PROBE)
        while probe not in self._probed:
            self.publish(probe, "?")
            try:
                self._read()
            except TimeoutError:
                continue
        self.connection.sendall(self.unsubscription(probe))

    def _read(self) -> None:
        data = self.connection.recv(65536)
        assert data, "the broker has closed the connection"
        self._unread += data
        while (found := self.split(self._unread)) is not None:
            source, message, self._unread = found
            topic = message[:50].rstrip(b"\0").decode()
            if topic.startswith(PROBES):
                self._probed.add(topic)
            else:
                reading = Reading(source, message[50], message[51:])
                self._received.append(Received(topic, reading.text, reading))


class Text(Device):
    def identification(self) -> bytes:
        return b"id%c%b" % (ord("0") + len(self._name), self._name)

    def subscription(self, topic: str) -> bytes:
        return b"ss%d!1%b" % (len(topic.encode()), topic.encode())

    def unsubscription(self, topic: str) -> bytes:
        return b"us%d!%b" % (len(topic.encode()), topic.encode())

    def split(self, data: bytes) -> tuple[str, bytes, bytes] | None:
        if len(data) < 8:
            return None
        ip, port, length = struct.unpack_from(">4sHH", data)
        if len(data) < 8 + length:
            return None
        return f"{socket.inet_ntoa(ip)}:{port}", data[8 : 8 + length], data[8 + length :]


class Struct(Device):
    def identification(self) -> bytes:
        return struct.pack("<i10s242s", 0, self._name, b"")

    def subscription(self, topic: str) -> bytes:
        return struct.pack("<i10s242s", 1, self._name, f"{topic} 1\n".encode())

    def unsubscription(self, topic: str) -> bytes:
        return struct.pack("<i10s242s", 2, self._name, topic.encode())

    def split(self, data: bytes) -> tuple[str, bytes, bytes] | None:
        if len(data) < 1585:
            return None
        ip, port = struct.unpack_from("<30si", data)
        return str(Address(ip.partition(bytes(1))[0].decode(), port)), data[34:1585], data[1585:]


def _with_all_below(topic: str) -> str:
    return f"{topic}/*"


TEXT = Dialect("devices-text", "devices", Text, durable=True, pushes=True, below=_with_all_below)
STRUCT = Dialect("devices-struct", "devices", Struct, durable=True, pushes=True, below=_with_all_below)
