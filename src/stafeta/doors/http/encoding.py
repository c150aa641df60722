"""Messages as clients of this door get them: JSON objects, lines, events and frames. No sockets.

1. A payload is text where it is UTF-8, else base64, and then `encoding` says so. Numbers are their exact digits.
2. An event's id is a mark of the broker's: a place in the log, and which log that is.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from struct import pack
from typing import Any, Final, cast

import orjson

from stafeta.message import COUNTER, KIND, PRODUCER, SOURCE, TIME, Batch, Kind
from stafeta.times import EPOCH

OVERHEAD: Final = 260  # bytes that a message takes about, beside its payload
_WORDS: Final = {int(kind): kind.word for kind in Kind}
_OPTIONS: Final = orjson.OPT_UTC_Z

Mark = Callable[[int], str]


def objects(batch: Batch) -> Iterator[dict[str, object]]:
    """The messages of a batch, each as what is written as JSON."""
    topic = batch.topic
    columns = (
        batch.positions,
        batch.column(TIME),
        batch.column(PRODUCER),
        batch.column(SOURCE),
        batch.column(KIND),
        batch.column(COUNTER),
        batch.payloads,
    )
    for offset, (position, time, producer, source, kind, counter, payload) in enumerate(
        zip(*columns, strict=True), batch.base
    ):
        found: dict[str, object] = {
            "topic": topic,
            "offset": offset,
            "position": position,
            "time": EPOCH + timedelta(microseconds=cast("int", time)),
            "kind": _WORDS[cast("int", kind)],
        }
        try:
            found["payload"] = payload.decode()
        except UnicodeDecodeError:
            found["payload"] = b64encode(payload).decode()
            found["encoding"] = "base64"
        if source:
            found["source"] = source
        if producer:
            found["producer"] = producer
        if counter is not None:
            found["counter"] = counter
        yield found


def in_order(batches: Sequence[Batch]) -> list[dict[str, object]]:
    """The messages of several topics in the order in which they were published."""
    found = [one for batch in batches for one in objects(batch)]
    if len({batch.topic for batch in batches}) > 1:
        found.sort(key=itemgetter("position"))
    return found


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=_OPTIONS)


def lines(messages: Sequence[dict[str, object]]) -> bytes:
    return b"".join([orjson.dumps(one, option=_OPTIONS | orjson.OPT_APPEND_NEWLINE) for one in messages])


# --- events


def events(mark: Mark | None) -> Callable[[Batch], list[bytes]]:
    """What makes the server-sent events of a batch; without ids, where there is no mark."""

    def encode(batch: Batch) -> list[bytes]:
        if not batch.positions[0]:  # a notice of the broker's own
            return [event(one["payload"], str(batch.topic).removeprefix("$sys/")) for one in objects(batch)]
        if mark is None:
            return [event(one, "message") for one in objects(batch)]
        return [
            b"id: %b\nevent: message\ndata: %b\n\n"
            % (mark(cast("int", one["position"])).encode(), dumps(one))
            for one in objects(batch)
        ]

    return encode


def event(value: object, name: str, id_: str = "") -> bytes:
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {name}\ndata: ".encode() + dumps(value) + b"\n\n"


# --- WebSocket frames, of text, as a server writes them


def frame(text: bytes) -> bytes:
    size = len(text)
    if size < 126:
        return pack("!BB", 0x81, size) + text
    if size < 1 << 16:
        return pack("!BBH", 0x81, 126, size) + text
    return pack("!BBQ", 0x81, 127, size) + text


def frames(mark: Mark | None) -> Callable[[Batch], list[bytes]]:
    """What makes the WebSocket frames of a batch; without ids, where there is no mark."""

    def encode(batch: Batch) -> list[bytes]:
        if not batch.positions[0]:
            kind = str(batch.topic).removeprefix("$sys/")
            return [frame(dumps({"type": kind, "detail": one["payload"]})) for one in objects(batch)]
        if mark is None:
            return [frame(dumps({"type": "message", **one})) for one in objects(batch)]
        return [
            frame(dumps({"type": "message", "id": mark(cast("int", one["position"])), **one}))
            for one in objects(batch)
        ]

    return encode
