"""The table of docs/values.md, as values: how each is published through each door, and what each dialect then gets."""

import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa

from tests.conformance import devices, flight, frames, http, zeromq
from tests.conformance.devices import datagram
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.frames import Number

INT, SHORT_REAL, FLOAT, STRING = range(4)
TEXT = "a body of text"


class Way(NamedTuple):
    """How a value is published through one door: `what`, in the words of the page."""

    dialect: Dialect
    door: str
    what: str
    publish: Callable[[Any, str], None]


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    row: str
    """The row of the page that says what becomes of it."""
    ways: list[Way]
    text: str
    """What the ZeroMQ text dialect gets, and the JSON dialect unless `base64` is set."""
    kind: str
    payload: bytes
    device: tuple[int, bytes]
    json: object
    xml: str
    python: object
    base64: bool = False

    def as_told(self, dialect: Dialect) -> object:
        """What a client of this dialect is to get."""
        encoded = {"publication": b64encode(self.payload).decode(), "encoding": "base64"}
        told: dict[str, object] = {
            "zeromq-text": self.text,
            "zeromq-json": encoded if self.base64 else {"publication": self.text},
            "client": (self.kind, self.payload),
            "devices-text": self.device,
            "devices-struct": (self.device[0], self.device[1].ljust(1500, b"\0")),
            "frames-json": self.json,
            "frames-xml": self.xml,
            "frames-pickle": (type(self.python), repr(self.python)),
            "flight": (self.kind, self.payload),
            "http": (self.kind, self.payload),
            "http-socket": (self.kind, self.payload),
        }
        return told[dialect.name]


def told(dialect: Dialect, message: Received) -> object:
    """What a client of this dialect has got, in the form of `Value.as_told`."""
    raw = cast("Any", message.raw)
    if dialect is zeromq.JSON:
        return {key: value for key, value in raw.items() if key != "publication_id"}
    if dialect is zeromq.CLIENT:
        return raw.kind, raw.data
    if dialect.door == "devices":
        return raw.type, raw.content
    return (type(raw), repr(raw)) if dialect is frames.PICKLE else raw


Publish: TypeAlias = Callable[[Any, str], None]


def text(data: str) -> Way:
    return Way(zeromq.TEXT, "ZeroMQ, text dialect", "any text", _publish(data))


def named(data: str, kind: str) -> list[Way]:
    """With the kind that is named: in ZeroMQ's JSON dialect, by the project's client, and in both ways of Flight."""
    what = "a string"
    body = {"publication": data, "kind": kind}
    return [
        Way(zeromq.JSON, "ZeroMQ, JSON dialect", what, lambda stranger, topic: stranger.put(topic, **body)),
        Way(zeromq.CLIENT, "client", "", lambda stranger, topic: stranger.client.put(topic, data, kind)),
        flown(data, kind),
        flown(data.encode(), kind),
        posted(data.encode(), "text/plain", TEXT, kind),
        listed("a `payload` in a list", payload=data, kind=kind),
        *([posted(data.encode(), "application/json", "a body of JSON")] if kind == "json" else []),
        *([posted(data.encode(), "text/plain; charset=utf-8", TEXT)] if kind == "string" else []),
    ]


def in_base64(data: bytes) -> list[Way]:
    what = "a string"
    body = {"publication": b64encode(data).decode(), "kind": "bytes", "encoding": "base64"}
    return [
        Way(zeromq.JSON, "ZeroMQ, JSON dialect", what, lambda stranger, topic: stranger.put(topic, **body)),
        Way(zeromq.CLIENT, "client", "", lambda stranger, topic: stranger.client.put(topic, data)),
        flown(data),
        flown(data, "bytes"),
        posted(data, "application/octet-stream", "any other body"),
        listed("a `payload` in base64", payload=b64encode(data).decode(), encoding="base64"),
    ]


def flown(data: str | bytes, kind: str = "") -> Way:
    """Through the Flight door, as text or as binary, with a kind beside it or without."""
    payload: Any = pa.array([data])

    def publish(stranger: flight.Flight, topic: str) -> None:
        stranger.put(topic, payload, kind)

    return Way(flight.FLIGHT, "Flight", "text" if isinstance(data, str) else "binary", publish)


def posted(body: bytes, type_: str, what: str, kind: str = "") -> Way:
    """Through the HTTP door, as a body of its own."""

    def publish(stranger: http.Rest, topic: str) -> None:
        stranger.put(topic, body, type_, kind)

    return Way(http.REST, "HTTP", what, publish)


def listed(what: str, **message: object) -> Way:
    """Through the HTTP door, as one of a JSON array."""

    def publish(stranger: http.Rest, topic: str) -> None:
        stranger.put_many(topic, message)

    return Way(http.REST, "HTTP", what, publish)


def any_json(value: object) -> list[Way]:
    def publish(stranger: zeromq.Json, topic: str) -> None:
        stranger.put(topic, publication=value)

    return [
        Way(zeromq.JSON, "ZeroMQ, JSON dialect", "any other JSON value", publish),
        listed("a `value` in a list", value=value),
    ]


def reading(type_: int, content: bytes, what: str = "INT, SHORT_REAL, FLOAT, STRING") -> Way:
    def publish(stranger: devices.Device, topic: str) -> None:
        stranger.send(datagram(topic, type_, content))

    return Way(devices.TEXT, "devices", what, publish)


def written(value: str, what: str) -> Way:
    def publish(stranger: frames.Json, topic: str) -> None:
        stranger.publish_written(topic, value)

    return Way(frames.JSON, "frames, JSON", what, publish)


def xml(data: str) -> Way:
    return Way(frames.XML, "frames, XML", "any text", _publish(data))


def python(value: object, what: str) -> Way:
    def publish(stranger: frames.Pickle, topic: str) -> None:
        stranger.publish_value(topic, value)

    return Way(frames.PICKLE, "frames, pickle", what, publish)


def _publish(data: str) -> Publish:
    def publish(stranger: Stranger, topic: str) -> None:
        stranger.publish(topic, data)

    return publish


def int_content(value: int) -> bytes:
    return struct.pack(">BI", value < 0, abs(value))


def float_content(sign: int, number: int, decimals: int) -> bytes:
    return struct.pack(">BIB", sign, number, decimals)


def number(
    row: str, digits: str, device: tuple[int, bytes], value: float, ways: list[Way], **other: str
) -> Value:
    """A number whose digits are the same wherever it is text."""
    kind = row.partition(" ")[0]
    return Value(
        f"{kind} {digits}",
        row,
        [*named(digits, kind), *ways],
        digits,
        kind,
        digits.encode(),
        device,
        Number(other.get("json", digits)),
        digits,
        value,
    )
