"""The text dialect: commands in characters, messages with their length before them. (docs/protocols/devices.md)

1. `id<length, one digit><id>`; ten, which no digit says, is the character after 9.
2. `ss<length>!<sf><topic>` and `us<length>!<topic>`, with a length of one to three digits.
3. To the client: IPv4 address (4 bytes), port (2), length (2), and so many bytes of topic[50], type and content.
"""

import re
from collections.abc import Callable
from socket import AF_INET, inet_ntop, inet_pton
from typing import Final

from stafeta import addresses
from stafeta.doors.devices.commands import (
    MAX_ID,
    Command,
    id_bytes,
    identification,
    subscription,
    topic_bytes,
    unsubscription,
)
from stafeta.doors.devices.deliveries import (
    STRING,
    DeliveryReader,
    ReceivedMessage,
    contents,
    delivery,
    fits,
    topic_field,
)
from stafeta.doors.devices.readings import HEAD, MAX_CONTENT
from stafeta.errors import InvalidCommand, InvalidDatagram, InvalidName
from stafeta.message import KIND, SOURCE, Batch

MARK: Final = b"id"  # what a connection in this dialect begins with
OVERHEAD: Final = 8 + HEAD

_LENGTH = re.compile(rb"(\d{1,3})!")
_LENGTH_BEGUN = re.compile(rb"\d{0,3}\Z")
_MAX_TOPIC: Final = 999
_NO_ADDRESS: Final = bytes(6)


def read(data: bytes, at: int) -> tuple[Command, int] | None:
    """The command at a place and where the next one begins; None where it is not complete."""
    verb = data[at : at + 2]
    if verb == b"id":
        return _read_id(data, at + 2)
    if verb not in (b"ss", b"us"):
        if verb in (b"", b"i", b"s", b"u"):
            return None
        raise InvalidCommand(f"{verb!r} is no command; the commands are id, ss and us.")
    length = _LENGTH.match(data, at + 2)
    if length is None:
        if _LENGTH_BEGUN.match(data, at + 2):
            return None
        raise InvalidCommand("The length of a topic is not one to three digits and '!'.")
    subscribing = verb == b"ss"
    start = length.end() + subscribing
    end = start + int(length[1])
    if end > len(data):
        return None
    topic = data[start:end]
    return subscription(topic, data[start - 1 : start]) if subscribing else unsubscription(topic), end


def _read_id(data: bytes, at: int) -> tuple[Command, int] | None:
    if at == len(data):
        return None
    length = data[at] - ord("0")
    if not 1 <= length <= MAX_ID:
        raise InvalidCommand(f"The length of a client's id is one digit, not {data[at : at + 1]!r}.")
    end = at + 1 + length
    return None if end > len(data) else (identification(data[at + 1 : end]), end)


def stream(batch: Batch, cut: Callable[[], None]) -> bytes:
    """All messages of a batch as they are sent; `cut` is called for each that had to be changed."""
    kind, source = batch.constant(KIND), batch.constant(SOURCE)
    if isinstance(kind, int) and kind >= STRING and isinstance(source, str) and fits(batch.topic):
        lengths = batch.lengths
        if max(lengths) <= MAX_CONTENT:
            field = topic_field(batch.topic)
            return batch.framed({length: _head(field, source, STRING, length) for length in lengths})
    return b"".join(frames(batch, cut))


def frames(batch: Batch, cut: Callable[[], None]) -> list[bytes]:
    """The same, message by message."""
    field = topic_field(batch.topic)
    heads: dict[tuple[str, int, int], bytes] = {}
    made: list[bytes] = []
    for source, type_, body in zip(*contents(batch, cut), strict=True):
        key = (source, type_, len(body))
        head = heads.get(key)
        if head is None:
            head = heads[key] = _head(field, *key)
        made.append(head + body)
    return made


def _head(field: bytes, source: str, type_: int, length: int) -> bytes:
    return _address(source) + (HEAD + length).to_bytes(2, "big") + field + bytes((type_,))


def _address(source: str) -> bytes:
    host, port = addresses.split(source)
    try:
        return inet_pton(AF_INET, host) + port.to_bytes(2, "big")
    except (OSError, ValueError):
        return _NO_ADDRESS


def identify(client: str) -> bytes:
    """What a client says first. Raises `InvalidClient`."""
    id_ = id_bytes(client)
    return b"id%c%b" % (ord("0") + len(id_), id_)


def subscribe(topic: str, sf: bool) -> bytes:
    """Raises `InvalidName`."""
    name = _topic(topic)
    return b"ss%d!%d%b" % (len(name), sf, name)


def unsubscribe(topic: str) -> bytes:
    """Raises `InvalidName`."""
    name = _topic(topic)
    return b"us%d!%b" % (len(name), name)


def _topic(topic: str) -> bytes:
    name = topic_bytes(topic)
    if not 1 <= len(name) <= _MAX_TOPIC:
        raise InvalidName(f"The topic {topic[:20]!r} has {len(name)} bytes; it must have 1 to {_MAX_TOPIC}.")
    return name


class Deliveries(DeliveryReader):
    def _read(self, data: bytes, at: int) -> tuple[ReceivedMessage, int] | None:
        start = at + 8
        if start > len(data):
            return None
        length = data[at + 6] << 8 | data[at + 7]
        if not HEAD <= length <= HEAD + MAX_CONTENT:
            raise InvalidDatagram(
                f"The broker sends {length} bytes for a message; one has {HEAD} to {HEAD + MAX_CONTENT}."
            )
        end = start + length
        if end > len(data):
            return None
        ip = inet_ntop(AF_INET, data[at : at + 4])
        return delivery(ip, data[at + 4] << 8 | data[at + 5], data[start:end]), end
