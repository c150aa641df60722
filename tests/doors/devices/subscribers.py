"""Subscribers and publishers as strangers write them: plain sockets, and nothing of Stafeta's own."""

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from stafeta.clients.closing import Closing
from tests.waiting import PATIENCE, wait_until

Place = tuple[str, int]
STRUCT_MESSAGE = struct.Struct("<30si50sB1500s")


class Message(NamedTuple):
    topic: str
    type: int
    content: bytes
    source: Place


class Subscriber(Closing):
    """Speaks the text dialect."""

    def __init__(self, place: Place, client: str, *, receive_buffer: int | None = None) -> None:
        self.client = client
        self._unread = b""
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(place)
        self.say(self.identification())

    def say(self, *commands: bytes) -> None:
        self.socket.sendall(b"".join(commands))

    def identification(self) -> bytes:
        return b"id%d%s" % (len(self.client), self.client.encode())

    def subscription(self, topic: str, sf: int = 0) -> bytes:
        name = topic.encode()
        return b"ss%d!%d%s" % (len(name), sf, name)

    def ending(self, topic: str) -> bytes:
        name = topic.encode()
        return b"us%d!%s" % (len(name), name)

    def subscribe(self, topic: str, sf: int = 0) -> None:
        self.say(self.subscription(topic, sf))

    def unsubscribe(self, topic: str) -> None:
        self.say(self.ending(topic))

    def receive(self, count: int) -> list[Message]:
        return [self._next() for _ in range(count)]

    def settled(self, publisher: "Publisher") -> list[Message]:
        """Waits until the broker has taken all that was said; returns what came meanwhile."""
        marker = f"{self.client}-ready"
        got: list[Message] = []
        self.subscribe(marker)
        self.socket.settimeout(0.05)

        def reached(text: bytes) -> bool:
            publisher.send(marker, 3, text)
            try:
                while (message := self._next())[:3] != (marker, 3, text):
                    if message.topic != marker:
                        got.append(message)
            except TimeoutError:
                return False
            return True

        wait_until(lambda: reached(b"subscribed"))
        self.socket.settimeout(PATIENCE)
        wait_until(lambda: reached(b"once more"))  # now no other marker is on its way
        return got

    def _next(self) -> Message:
        head = self._read(8)
        body = self._read(int.from_bytes(head[6:]))
        place = socket.inet_ntoa(head[:4]), int.from_bytes(head[4:6])
        return Message(body[:50].rstrip(b"\0").decode(), body[50], body[51:], place)

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError(f"closed, with {len(self._unread)} of {size} bytes there")
            self._unread += more
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def is_closed(self) -> bool:
        """Waits until the broker has closed the connection, without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends as a machine does that was switched off: nothing more is read, nobody is told properly."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class StructSubscriber(Subscriber):
    """Speaks the struct dialect."""

    def _command(self, kind: int, buffer: bytes) -> bytes:
        return struct.pack("<i10s242s", kind, self.client.encode(), buffer)

    def identification(self) -> bytes:
        return self._command(0, b"")

    def subscription(self, topic: str, sf: int = 0) -> bytes:
        return self._command(1, f"{topic} {sf}\n".encode())

    def ending(self, topic: str) -> bytes:
        return self._command(2, topic.encode())

    def _next(self) -> Message:
        host, port, topic, type_, content = STRUCT_MESSAGE.unpack(self._read(STRUCT_MESSAGE.size))
        sizes = {0: 5, 1: 2, 2: 6, 3: len(content.rstrip(b"\0"))}
        place = host.rstrip(b"\0").decode(), port
        return Message(topic.rstrip(b"\0").decode(), type_, content[: sizes[type_]], place)


class Publisher(Closing):
    """Sends datagrams."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.place: Place = self._socket.getsockname()

    def send(self, topic: str, type_: int, content: bytes) -> Message:
        """Returns what a subscriber should get of it."""
        self.send_raw(topic.encode().ljust(50, b"\0") + bytes((type_,)) + content)
        return Message(topic, type_, content, self.place)

    def send_texts(self, topic: str, texts: Sequence[str]) -> list[Message]:
        return [self.send(topic, 3, text.encode()) for text in texts]

    def send_raw(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self._place)

    def close(self) -> None:
        self._socket.close()
