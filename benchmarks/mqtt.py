"""Just enough of MQTT 3.1.1 to publish to Mosquitto and to count what it delivers, written by hand."""

import socket
from collections.abc import Sequence

from benchmarks.load import LoadFailed
from benchmarks.peers import Mosquitto
from benchmarks.publishers import Stream
from benchmarks.readings import Reading

PUBACK = 4  # bytes
_CONNECT, _CONNACK, _PUBLISH, _PUBACK = 0x10, 0x20, 0x30, 0x40
_SUBSCRIBE, _SUBACK, _DISCONNECT = 0x82, 0x90, 0xE0
_IDENTIFIERS = 1 << 14  # packets of one publisher that can be told apart


def connect(client: str, *, clean: bool) -> bytes:
    return _packet(_CONNECT, _string("MQTT") + bytes([4, clean << 1, 0, 0]) + _string(client))


def subscribe(topic: str, qos: int) -> bytes:
    return _packet(_SUBSCRIBE, b"\0\1" + _string(topic) + bytes([qos]))


def publish(reading: Reading, identifier: int = 0) -> bytes:
    """A PUBLISH: of QoS 1 where it has an identifier, of QoS 0 where it has none."""
    marked = identifier.to_bytes(2, "big") if identifier else b""
    return _packet(_PUBLISH | bool(identifier) << 1, _string(reading.topic) + marked + reading.content)


def acknowledge(line: socket.socket, reading: Reading, stream: memoryview, begin: int) -> None:
    """Sends a PUBACK for each PUBLISH of this reading that the stream has whole since it was `begin` bytes long."""
    size = len(publish(reading, 1))
    new = stream[begin // size * size : len(stream) // size * size]
    place = size - len(reading.content) - 2  # of the identifier
    answers = bytearray(bytes([_PUBACK, 2, 0, 0]) * (len(new) // size))
    answers[2::4] = new[place::size]
    answers[3::4] = new[place + 1 :: size]
    line.sendall(answers)


def _packet(kind: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = divmod(rest, 128)
        length.append(digit | bool(rest) << 7)
        if not rest:
            return bytes([kind]) + bytes(length) + body


def _string(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded


class MqttStation:
    """Mosquitto, and its clients."""

    name = "Mosquitto"

    def __init__(self, broker: Mosquitto) -> None:
        self.pid = broker.pid
        self.address = broker.address

    def subscriber(self, client: str, topic: str | None, *, held: bool) -> socket.socket:
        """A connection that has subscribed to a topic or, without one, found its session again.

        Held: QoS 1 and a session that persists; else QoS 0 and a clean one.
        """
        line = self._connect(client, clean=not held)
        if topic is not None:
            line.sendall(subscribe(topic, int(held)))
            _expect(line, _SUBACK, 5)
        return line

    def publisher(self, readings: Sequence[Reading]) -> Stream:
        """Publishes with QoS 0."""
        line = self._connect("publisher", clean=True)
        return Stream(line, readings, [publish(reading) for reading in readings])

    def acknowledged_publisher(self, reading: Reading) -> Stream:
        """Publishes with QoS 1: its connection gets a PUBACK for each."""
        line = self._connect("filler", clean=True)
        packets = [publish(reading, identifier) for identifier in range(1, _IDENTIFIERS + 1)]
        return Stream(line, [reading], packets)

    def delivered(self, reading: Reading) -> int:
        """How many bytes a subscriber with QoS 0 gets for a reading."""
        return len(publish(reading))

    def leave(self, line: socket.socket) -> None:
        """Closes a connection, and comes back when the broker has seen it."""
        line.sendall(_packet(_DISCONNECT, b""))
        while line.recv(1 << 16):
            pass
        line.close()

    def _connect(self, client: str, *, clean: bool) -> socket.socket:
        line = socket.create_connection(self.address)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(connect(client, clean=clean))
        _expect(line, _CONNACK, 4)
        return line


def _expect(line: socket.socket, kind: int, size: int) -> None:
    answer = line.recv(size, socket.MSG_WAITALL)
    if len(answer) != size or answer[0] != kind or answer[-1] > 2:
        raise LoadFailed(f"Mosquitto answered {answer!r} instead of a packet that begins with {kind:#x}.")
