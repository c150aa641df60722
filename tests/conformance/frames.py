"""Strangers at the frames door: one for each serializer, with the standard library's readers."""

import json
import pickle
import struct
from abc import abstractmethod
from collections import deque
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from tests.brokers import Doors
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.encrypted import connected
from tests.waiting import PATIENCE

HEAD = struct.Struct(">BH")


class Framed(Stranger):
    serializer: int
    key = "command"

    def __init__(self, broker: Doors, name: str) -> None:
        self._socket = connected(broker, "frames", PATIENCE)
        self._unread = b""
        self._received: deque[Received] = deque()
        self.largest = 0  # bytes of a body that it was sent

    @abstractmethod
    def dump(self, fields: dict[str, Any]) -> bytes: ...

    @abstractmethod
    def load(self, body: bytes) -> dict[str, Any]: ...

    def subscribe(self, topic: str) -> None:
        self.send({self.key: "subscribe", "topic": topic})
        self.topics()

    def unsubscribe(self, topic: str) -> None:
        self.send({self.key: "unsubscribe", "topic": topic})
        self.topics()

    def publish(self, topic: str, text: str) -> None:
        self.publish_value(topic, text)

    def publish_value(self, topic: str, value: object) -> None:
        self.send({self.key: "publish", "topic": topic, "message": value})
        self.topics()

    def topics(self) -> object:
        """Asks for the topics. Since all is done in order, the answer shows that what was sent before is done."""
        self.send({self.key: "listTopics"})
        while True:
            fields = self._read()
            if fields[self.key] == "listTopics":
                return fields["topics"]
            self._keep(fields)

    def receive(self, count: int) -> list[Received]:
        while len(self._received) < count:
            self._keep(self._read())
        return [self._received.popleft() for _ in range(len(self._received))]

    def close(self) -> None:
        self._socket.close()

    def send(self, fields: dict[str, Any]) -> None:
        self.send_body(self.dump(fields))

    def send_body(self, body: bytes) -> None:
        self._socket.sendall(HEAD.pack(self.serializer, len(body)) + body)

    def _keep(self, fields: dict[str, Any]) -> None:
        assert fields.keys() == {self.key, "topic", "message"}
        assert fields[self.key] == "publish"
        value = fields["message"]
        self._received.append(Received(fields["topic"], value if isinstance(value, str) else "", value))

    def _read(self) -> dict[str, Any]:
        while True:
            if len(self._unread) >= HEAD.size:
                serializer, length = HEAD.unpack_from(self._unread)
                assert serializer == self.serializer
                assert length > 0
                self.largest = max(self.largest, length)
                end = HEAD.size + length
                if len(self._unread) >= end:
                    body, self._unread = self._unread[HEAD.size : end], self._unread[end:]
                    return self.load(body)
            data = self._socket.recv(65536)
            assert data, "the broker has closed the connection"
            self._unread += data


class Json(Framed):
    serializer = 0

    def dump(self, fields: dict[str, Any]) -> bytes:
        return json.dumps(fields).encode()

    def load(self, body: bytes) -> dict[str, Any]:
        return dict(json.loads(body, parse_float=Number, parse_int=Number))

    def publish_written(self, topic: str, value: str) -> None:
        """Publishes JSON as it is written."""
        self.send_body(f'{{"command":"publish","topic":{json.dumps(topic)},"message": {value} }}'.encode())


class Number(NamedTuple):
    """A number of JSON as it is written."""

    digits: str


class Xml(Framed):
    serializer = 1
    key = "type"

    def dump(self, fields: dict[str, Any]) -> bytes:
        attributes = " ".join(f"{key}={quoteattr(str(value))}" for key, value in fields.items())
        return f"<m {attributes}/>".encode()

    def load(self, body: bytes) -> dict[str, Any]:
        return dict(ElementTree.fromstring(body).attrib)


class Pickle(Framed):
    serializer = 2

    def dump(self, fields: dict[str, Any]) -> bytes:
        return pickle.dumps(fields)

    def load(self, body: bytes) -> dict[str, Any]:
        return dict(pickle.loads(body))


def _with_all_below(topic: str) -> str:
    return topic


def _meaning(topic: str) -> str:
    return f"{topic}/#"


def _dialect(name: str, connect: type[Framed]) -> Dialect:
    return Dialect(
        name,
        "frames",
        connect,
        keeps_last=True,
        pushes=True,
        makes_topics=True,
        below=_with_all_below,
        meaning=_meaning,
    )


JSON = _dialect("frames-json", Json)
XML = _dialect("frames-xml", Xml)
PICKLE = _dialect("frames-pickle", Pickle)
