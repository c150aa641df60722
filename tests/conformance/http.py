"""Strangers at the HTTP door: one that asks, with the standard library, and one with a WebSocket."""

import http.client
import json
from base64 import b64decode
from collections import deque
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote, urlencode

from websockets.sync.client import connect

from stafeta.addresses import Address
from tests.brokers import Doors
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.encrypted import secrets_of
from tests.conformance.zeromq import Fetching
from tests.waiting import PATIENCE


def connection_of(broker: Doors) -> http.client.HTTPConnection:
    place, secrets = broker.door("http"), secrets_of(broker)
    if secrets is None:
        return http.client.HTTPConnection(*place, timeout=PATIENCE)
    return http.client.HTTPSConnection(*place, timeout=PATIENCE, context=secrets.context)


class Rest(Fetching):
    def __init__(self, broker: Doors, name: str) -> None:
        super().__init__()
        self._name = name
        self._connection = connection_of(broker)

    def subscribe(self, topic: str) -> None:
        self.ask("POST", "/api/subscriptions", {"client": self._name, "filter": topic})
        self.subscriptions[topic] = None

    def unsubscribe(self, topic: str) -> None:
        del self.subscriptions[topic]
        self.ask("DELETE", f"/api/subscriptions?{urlencode({'client': self._name, 'filter': topic})}")

    def publish(self, topic: str, text: str) -> None:
        self.put(topic, text.encode(), "text/plain")

    def put(self, topic: str, body: bytes, type_: str, kind: str = "") -> None:
        """Publishes a body of some media type."""
        path = f"/api/topics/{quote(topic, safe='')}/messages"
        assert self.ask("POST", path + (f"?kind={kind}" if kind else ""), body, type_)["count"] == 1

    def put_many(self, topic: str, *messages: dict[str, object]) -> None:
        """Publishes messages as members of a JSON array."""
        path = f"/api/topics/{quote(topic, safe='')}/messages?batch=true"
        assert self.ask("POST", path, list(messages))["count"] == len(messages)

    def fetch(self, subscription: str) -> list[Received]:
        aim = {"client": self._name, "filter": subscription}
        found = self.ask("GET", f"/api/subscriptions/messages?{urlencode({**aim, 'limit': 10_000})}")[
            "messages"
        ]
        if found:
            self.ask("POST", "/api/subscriptions/ack", {**aim, "ranges": ranges(found)})
        return [received(message) for message in found]

    def ask(self, method: str, path: str, body: object = None, type_: str = "application/json") -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": type_} if body is not None else {})
        answer = self._connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 201), said
        return json.loads(said)

    def close(self) -> None:
        self._connection.close()


class Socket(Stranger):
    def __init__(self, broker: Doors, name: str) -> None:
        secrets = secrets_of(broker)
        self._closing = ExitStack()
        self._connection = self._closing.enter_context(
            connect(
                f"{'ws' if secrets is None else 'wss'}://{Address(*broker.door('http'))}/api/socket?client={name}",
                ssl=None if secrets is None else secrets.context,
                open_timeout=PATIENCE,
                max_size=None,
                compression=None,
            )
        )
        self._filters: dict[str, None] = {}
        self._received: deque[dict[str, Any]] = deque()

    def subscribe(self, topic: str) -> None:
        self._tell(type="subscribe", filter=topic)
        self._filters[topic] = None

    def resume(self, topic: str) -> None:
        self._filters[topic] = None  # it goes on with all of them by itself

    def unsubscribe(self, topic: str) -> None:
        del self._filters[topic]
        self._tell(type="unsubscribe", filter=topic)

    def publish(self, topic: str, text: str) -> None:
        self._tell(type="publish", topic=topic, payload=text)

    def receive(self, count: int) -> list[Received]:
        while len(self._received) < count:
            message = self._next()
            assert message["type"] == "message", message
            self._received.append(message)
        found = [self._received.popleft() for _ in range(len(self._received))]
        for filter_ in self._filters:
            some = ranges(found)
            for at in range(0, len(some), 1000):
                self._tell(type="ack", filter=filter_, ranges=some[at : at + 1000])
        return [received(message) for message in found]

    def _tell(self, **command: object) -> None:
        """Says something, and waits until it is done."""
        self._connection.send(json.dumps(command))
        while (reply := self._next())["type"] == "message":
            self._received.append(reply)
        assert reply["type"] != "error", reply

    def _next(self) -> dict[str, Any]:
        return dict(json.loads(self._connection.recv(PATIENCE)))

    def close(self) -> None:
        self._closing.close()


def received(message: dict[str, Any]) -> Received:
    payload = message["payload"].encode()
    if message.get("encoding") == "base64":
        payload = b64decode(payload)
    return Received(message["topic"], payload.decode(errors="backslashreplace"), (message["kind"], payload))


def ranges(messages: list[dict[str, Any]]) -> list[dict[str, object]]:
    """What acknowledges exactly these."""
    found: list[dict[str, Any]] = []
    for topic, offset in sorted((message["topic"], message["offset"]) for message in messages):
        if found and found[-1]["topic"] == topic and found[-1]["last"] == offset - 1:
            found[-1]["last"] = offset
        else:
            found.append({"topic": topic, "first": offset, "last": offset})
    return found


REST = Dialect("http", "http", Rest, durable=True, makes_topics=True)
SOCKET = Dialect("http-socket", "http", Socket, durable=True, pushes=True, makes_topics=True)
