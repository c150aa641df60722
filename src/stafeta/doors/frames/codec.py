"""Frames and what they say, without sockets. (docs/protocols/frames.md)

1. A frame is one byte for the serializer, two for the length of the body (big-endian), and the body.
2. A connection uses one serializer: that of its first byte.
3. A body says its verb under the key `type` or `command`, and under one of them only.
4. Bytes may be cut or run together anywhere: the same bytes make the same commands. Where they cannot be read,
   `InvalidFrame` is raised, and nothing that comes after is read.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile
from reprlib import repr as shown  # what strangers send may be as large and as deep as they like
from typing import Any, Final, NamedTuple, TypeAlias

from stafeta.doors.frames.serializers import SERIALIZERS, Serializer
from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind

MAX_BODY: Final = 0xFFFF
HEAD: Final = struct.Struct(">BH")
KEYS: Final = ("command", "type")
TLS_RECORD: Final = 0x16  # what TLS begins with
VERBS: Final = "subscribe, unsubscribe, publish and listTopics"


class Subscribe(NamedTuple):
    topic: str


class Unsubscribe(NamedTuple):
    topic: str


class Publish(NamedTuple):
    topic: str
    kind: Kind
    payload: bytes


class ListTopics(NamedTuple):
    pass


Command: TypeAlias = Subscribe | Unsubscribe | Publish | ListTopics


class Frames:
    """Splits one connection's bytes into bodies: `add` what has come, then ask for the `body` until there is none."""

    __slots__ = ("_at", "_unread", "serializer")

    def __init__(self) -> None:
        self.serializer: Serializer | None = None  # once it is settled
        self._unread: bytes | bytearray = b""
        self._at = 0  # what is before it has been read

    def add(self, data: bytes) -> None:
        if not self._unread:
            self._unread = data
            return
        if isinstance(self._unread, bytearray):
            del self._unread[: self._at]
        else:
            self._unread = bytearray(self._unread[self._at :])
        self._at = 0
        self._unread += data

    def body(self) -> bytes | None:
        """The next body; None while it is not complete."""
        unread, at = self._unread, self._at
        if not unread:
            return None
        if self.serializer is None or unread[at] != self.serializer.code:
            self._settle(unread[at])
        if len(unread) - at < HEAD.size:
            return None
        _, length = HEAD.unpack_from(unread, at)
        if not length:
            raise InvalidFrame("A frame has the length 0.")
        begin = at + HEAD.size
        end = begin + length
        if len(unread) < end:
            return None
        body = bytes(memoryview(unread)[begin:end])
        if end == len(unread):
            self._unread, self._at = b"", 0
        else:
            self._at = end
        return body

    def _settle(self, code: int) -> None:
        if self.serializer is not None:
            raise InvalidFrame(
                f"A frame has the serializer {code}; this connection's is {self.serializer.code} "
                f"({self.serializer.name})."
            )
        if code >= len(SERIALIZERS):
            known = ", ".join(f"{one.code} ({one.name})" for one in SERIALIZERS)
            hint = " This may be TLS, which the door is not configured for." if code == TLS_RECORD else ""
            raise InvalidFrame(f"A frame has the serializer {code}; there are {known}.{hint}")
        self.serializer = SERIALIZERS[code]

    @property
    def unfinished(self) -> bool:
        """True where a frame has begun and not ended."""
        return bool(self._unread)


class Commands(Frames):
    """What one connection asks of the broker: `add` what has come, then ask for the `next` until there is none."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        super().__init__()
        self.key = KEYS[0]  # under which the last verb was said

    def next(self) -> Command | None:
        """The next command; None while it is not complete. Raises `InvalidFrame`."""
        body = self.body()
        if body is None:
            return None
        assert self.serializer is not None
        try:
            fields = self.serializer.read(body)
        except InvalidMessage as error:
            raise InvalidFrame(str(error)) from None
        said = [key for key in KEYS if key in fields]
        if len(said) != 1:
            both = "both" if said else "neither"
            raise InvalidFrame(f"A body must have a verb under 'command' or 'type'; it has {both}.")
        (self.key,) = said
        return _command(fields[self.key], fields)


def _command(verb: object, fields: dict[str, Any]) -> Command:
    match verb:
        case "publish":
            topic = _topic(fields)
            if "message" not in fields:
                raise InvalidFrame("A publish has no 'message'.")
            return Publish(topic, *fields["message"])
        case "subscribe":
            return Subscribe(_topic(fields))
        case "unsubscribe":
            return Unsubscribe(_topic(fields))
        case "listTopics":
            return ListTopics()
    raise InvalidFrame(f"{shown(verb)} is no verb; the verbs are {VERBS}.")


def _topic(fields: dict[str, Any]) -> str:
    topic = fields.get("topic")
    if not isinstance(topic, str):
        raise InvalidFrame("'topic' must be text.")
    return topic


def frame(serializer: Serializer, fields: dict[str, object]) -> bytes:
    """A whole frame. Raises `InvalidMessage` where it would be too large, or cannot be written."""
    body = serializer.dump(fields)
    if len(body) > MAX_BODY:
        raise InvalidMessage(
            f"With its topic the message takes {len(body):,} bytes as {serializer.name}; a frame holds at most "
            f"{MAX_BODY:,}."
        )
    return HEAD.pack(serializer.code, len(body)) + body


def topics_frame(serializer: Serializer, key: str, names: Sequence[str]) -> tuple[bytes, int]:
    """The answer to listTopics, and how many of the names are in it: as many as fit."""

    def body(count: int) -> bytes:
        return serializer.dump({key: "listTopics", "topics": list(names[:count])})

    # No name takes less than its own bytes and a sign between it and the next.
    sizes = accumulate(len(name.encode()) + 1 for name in names)
    count = sum(1 for _ in takewhile(lambda size: size <= MAX_BODY, sizes))
    made = body(count)
    if len(made) > MAX_BODY:
        count = bisect_right(range(count), MAX_BODY, key=lambda count: len(body(count))) - 1
        made = body(count)
    return HEAD.pack(serializer.code, len(made)) + made, count
