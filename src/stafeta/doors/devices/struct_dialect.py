"""The struct dialect: packed structures of one size each way, integers little-endian. (docs/protocols/devices.md)

1. To the server, 256 bytes: kind (int32: 0 id, 1 subscribe, 2 unsubscribe), id[10], buffer[242].
2. A buffer is text up to a NUL or its end: `<topic> <sf>`, where SF may be missing and more may follow.
3. To the client, 1585 bytes: ip[30] as text, port (int32), topic[50], type (uint8), content[1500].
"""

import struct
from collections.abc import Callable
from typing import Final

from stafeta import addresses
from stafeta.doors.devices.commands import (
    Command,
    id_bytes,
    identification,
    subscription,
    topic_bytes,
    unsubscription,
)
from stafeta.doors.devices.deliveries import (
    DeliveryReader,
    ReceivedMessage,
    contents,
    delivery,
    topic_field,
)
from stafeta.errors import InvalidCommand, InvalidName
from stafeta.message import Batch

OVERHEAD: Final = 1585  # all of it: a message takes the same room whatever its content

_ID, _SUBSCRIBE, _UNSUBSCRIBE = range(3)
_BUFFER: Final = 242
_COMMAND = struct.Struct(f"<i10s{_BUFFER}s")
_ADDRESS = struct.Struct("<30si")
_TLS_RECORD: Final = b"\x16\x03"  # what TLS begins with
_HOST: Final = 29  # and the NUL that programs in C look for


def read(data: bytes, at: int) -> tuple[Command, int] | None:
    """The command at a place and where the next one begins; None where it is not complete."""
    if len(data) - at < 4:
        return None
    kind = int.from_bytes(data[at : at + 4], "little", signed=True)
    if kind not in (_ID, _SUBSCRIBE, _UNSUBSCRIBE):
        hint = (
            " This may be TLS, which the door is not configured for."
            if data[at : at + 2] == _TLS_RECORD
            else ""
        )
        raise InvalidCommand(f"{kind} is no kind of command; the kinds are 0, 1 and 2.{hint}")
    end = at + _COMMAND.size
    if end > len(data):
        return None
    client: bytes
    buffer: bytes
    _, client, buffer = _COMMAND.unpack_from(data, at)
    if kind == _ID:
        return identification(client.partition(b"\0")[0]), end
    topic, sf, *_ = [*buffer.partition(b"\0")[0].split(), b"", b""]
    return subscription(topic, sf or b"0") if kind == _SUBSCRIBE else unsubscription(topic), end


def frames(batch: Batch, cut: Callable[[], None]) -> list[bytes]:
    """The messages of a batch, each as it is sent; `cut` is called for each that had to be changed."""
    field = topic_field(batch.topic)
    heads: dict[tuple[str, int], bytes] = {}
    made: list[bytes] = []
    for source, type_, body in zip(*contents(batch, cut), strict=True):
        head = heads.get((source, type_))
        if head is None:
            head = heads[source, type_] = _address(source) + field + bytes((type_,))
        made.append((head + body).ljust(OVERHEAD, b"\0"))
    return made


def _address(source: str) -> bytes:
    host, port = addresses.split(source)
    return _ADDRESS.pack(host.encode("ascii", "replace")[:_HOST], port)


def identify(client: str) -> bytes:
    """What a client says first. Raises `InvalidClient`."""
    return _COMMAND.pack(_ID, id_bytes(client), b"")


def subscribe(client: str, topic: str, sf: bool) -> bytes:
    """Raises `InvalidName`."""
    return _COMMAND.pack(_SUBSCRIBE, id_bytes(client), _buffer(topic, b" %d\n" % sf))


def unsubscribe(client: str, topic: str) -> bytes:
    """Raises `InvalidName`."""
    return _COMMAND.pack(_UNSUBSCRIBE, id_bytes(client), _buffer(topic, b""))


def _buffer(topic: str, rest: bytes) -> bytes:
    name = topic_bytes(topic)
    room = _BUFFER - len(rest)
    if len(name) > room or name.split() != [name] or b"\0" in name:
        raise InvalidName(f"The topic {topic[:20]!r} must have 1 to {room} bytes, no white space and no NUL.")
    return name + rest


class Deliveries(DeliveryReader):
    def _read(self, data: bytes, at: int) -> tuple[ReceivedMessage, int] | None:
        end = at + OVERHEAD
        if end > len(data):
            return None
        host, port = _ADDRESS.unpack_from(data, at)
        ip = host.partition(b"\0")[0].decode(errors="surrogateescape")
        return delivery(ip, port, data[at + _ADDRESS.size : end]), end
