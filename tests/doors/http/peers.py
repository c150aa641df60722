"""Somebody who speaks HTTP, with the standard library alone."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from stafeta.clients.closing import Closing
from tests.waiting import PATIENCE

Place = tuple[str, int]


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer(Closing):
    """One connection, which is kept."""

    def __init__(
        self, place: Place, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.place = place
        self.headers = dict(headers or {})
        if tls is None:
            self.connection = http.client.HTTPConnection(*place, timeout=PATIENCE)
        else:
            self.connection = http.client.HTTPSConnection(*place, timeout=PATIENCE, context=tls)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Any = None,
        **parameters: object,
    ) -> Answer:
        """A body that is not bytes goes as JSON; parameters that are lists are there several times."""
        sent = {**self.headers, **(headers or {})}
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        if parameters:
            path += "?" + urlencode(parameters, doseq=True)
        self.connection.request(method, path, data, sent)  # type: ignore[arg-type]
        answer = self.connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **parameters: object) -> Any:
        answer = self.ask("GET", path, None, None, **parameters)
        assert answer.status == 200, answer
        return answer.json

    def post(self, path: str, body: object = None, **parameters: object) -> Any:
        answer = self.ask("POST", path, body, None, **parameters)
        assert answer.status in (200, 201), answer
        return answer.json

    def publish(self, topic: str, *texts: str) -> Any:
        messages = [{"payload": text} for text in texts]
        return self.post(messages_of(topic), messages, batch="true")

    def texts(self, topic: str, **parameters: object) -> list[str]:
        return [one["payload"] for one in self.get(messages_of(topic), **parameters)["messages"]]

    def close(self) -> None:
        self.connection.close()


def topic_path(topic: str) -> str:
    return f"/api/topics/{quote(topic, safe='')}"


def messages_of(topic: str) -> str:
    return f"{topic_path(topic)}/messages"


class Event(NamedTuple):
    id: str
    name: str
    data: Any


class Events(Closing):
    """A stream of server-sent events."""

    def __init__(self, place: Place, headers: Any = None, **parameters: object) -> None:
        self._connection = http.client.HTTPConnection(*place, timeout=PATIENCE)
        self._connection.request(
            "GET", "/api/events?" + urlencode(parameters, doseq=True), headers=dict(headers or {})
        )
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.readline() == b"retry: 1000\n"

    def __iter__(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if text and not text.startswith(":"):
                name, _, value = text.partition(": ")
                fields[name] = value
            elif fields and not text:
                yield Event(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
                fields = {}

    def take(self, count: int) -> list[Event]:
        found: list[Event] = []
        for event in self:
            found.append(event)
            if len(found) == count:
                break
        assert len(found) == count, found
        return found

    def texts(self, count: int) -> list[str]:
        return [event.data["payload"] for event in self.take(count)]

    def close(self) -> None:
        self._connection.close()
        self.answer.close()
