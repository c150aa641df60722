"""The devices door as a device speaks to it: its text dialect and its datagrams, written by hand.

docs/protocols/devices.md has the rules. None of this is the broker's own codec, so that it is not measured.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.brokers import Broker
from benchmarks.publishers import Datagrams
from benchmarks.readings import Reading

_HEAD = struct.Struct(">4sHH")  # address and port of the publisher, length of what follows
_TOPIC = 50


def datagram(reading: Reading) -> bytes:
    return reading.topic.encode().ljust(_TOPIC, b"\0") + bytes([reading.kind]) + reading.content


def delivered(reading: Reading) -> int:
    """How many bytes a subscriber gets for a reading."""
    return _HEAD.size + len(datagram(reading))


class ReceivedMessage(NamedTuple):
    end: int  # where it ends in the stream
    datagram: memoryview


def deliveries(stream: memoryview) -> Iterator[ReceivedMessage]:
    """What a subscriber has got, message by message."""
    begin = 0
    while begin < len(stream):
        end = begin + _HEAD.size + _HEAD.unpack_from(stream, begin)[2]
        yield ReceivedMessage(end, stream[begin + _HEAD.size : end])
        begin = end


class DeviceStation:
    """A broker with a devices door, and its clients."""

    name = "Stafeta"

    def __init__(self, broker: Broker) -> None:
        self.pid = broker.pid
        self.address = broker.door("devices")

    def subscriber(self, client: str, topic: str | None, *, held: bool) -> socket.socket:
        """A connection that has asked for a topic (SF 1 if held) or, without one, for what it asked for before.

        The protocol does not say when it was heard: `stations.settle` finds out.
        """
        line = socket.create_connection(self.address)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(f"id{len(client)}{client}".encode())
        if topic is not None:
            line.sendall(f"ss{len(topic)}!{held:d}{topic}".encode())
        return line

    def publisher(self, readings: Sequence[Reading]) -> Datagrams:
        return Datagrams(self.address, readings, [datagram(reading) for reading in readings])

    def delivered(self, reading: Reading) -> int:
        return delivered(reading)

    def leave(self, line: socket.socket) -> None:
        """Closes a connection, and comes back when the broker has seen it."""
        line.shutdown(socket.SHUT_WR)
        while line.recv(1 << 16):
            pass
        line.close()
