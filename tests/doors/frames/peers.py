"""Peers as strangers write them: plain sockets, Python's own serializers, and nothing of Stafeta's own."""

import json
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, Final
from xml.etree import ElementTree

from stafeta.clients.closing import Closing
from tests.waiting import PATIENCE

Place = tuple[str, int]
Fields = dict[str, Any]
HEAD: Final = struct.Struct(">BH")


def _from_xml(body: bytes) -> Fields:
    return dict(ElementTree.fromstring(body).attrib)


def _to_xml(fields: Fields) -> bytes:
    body: bytes = ElementTree.tostring(ElementTree.Element("message", fields), encoding="utf-8")
    return body


_WRITERS: Final[tuple[Callable[[Fields], bytes], ...]] = (
    lambda fields: json.dumps(fields).encode(),
    _to_xml,
    pickle.dumps,
)
_READERS: Final[tuple[Callable[[bytes], Any], ...]] = (json.loads, _from_xml, pickle.loads)
JSON: Final = 0
XML: Final = 1
PICKLE: Final = 2


class Peer(Closing):
    def __init__(
        self, place: Place, serializer: int = JSON, key: str = "command", *, receive_buffer: int | None = None
    ) -> None:
        self.serializer = serializer
        self.key = key
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(place)

    def framed(self, verb: str, **fields: Any) -> bytes:
        body = _WRITERS[self.serializer]({self.key: verb, **fields})
        return HEAD.pack(self.serializer, len(body)) + body

    def say(self, verb: str, **fields: Any) -> None:
        self.socket.sendall(self.framed(verb, **fields))

    def body(self, body: bytes) -> None:
        """Says a body as it is."""
        self.socket.sendall(HEAD.pack(self.serializer, len(body)) + body)

    def subscribe(self, topic: str) -> None:
        """Returns when the subscription is in effect."""
        self.say("subscribe", topic=topic)
        self.topics()

    def publish(self, topic: str, *messages: Any) -> None:
        self.socket.sendall(b"".join(self.framed("publish", topic=topic, message=one) for one in messages))

    def topics(self) -> Any:
        """What listTopics is answered. Deliveries that come before it are let go."""
        self.say("listTopics")
        while (told := self.hear())[self.key] != "listTopics":
            pass
        return told["topics"]

    def hear(self) -> Fields:
        fields: Fields = _READERS[self.serializer](self.hear_body())
        return fields

    def hear_body(self) -> bytes:
        code, length = HEAD.unpack(self._read(HEAD.size))
        assert code == self.serializer
        return self._read(length)

    def get(self, count: int) -> list[tuple[str, Any]]:
        """The next deliveries: topics and messages."""
        told = [self.hear() for _ in range(count)]
        assert {one[self.key] for one in told} <= {"publish"}
        return [(one["topic"], one["message"]) for one in told]

    def is_closed(self) -> bool:
        """Waits until the broker has closed the connection, without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise EOFError(f"closed, with {len(found)} of {size} bytes there")
            found += more
        return found

    def close(self) -> None:
        self.socket.close()
