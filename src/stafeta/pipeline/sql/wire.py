"""What the two sides of a question say to each other: frames, each a kind, a length and so many bytes.

1. Who asks says the token first, and then statements, one after the other; while one runs, that it is to be cancelled.
   Whoever says that he only reads is refused all else from then on.
2. The answer to a statement is sentences for whoever asks, a schema, batches, and an end: done, or an error.
3. Statements, sentences and ends are JSON; schema and batches are Arrow's own messages.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from stafeta.errors import InvalidFrame

TOKEN: Final = b"k"
STATEMENT: Final = b"q"
CANCEL: Final = b"c"
READ_ONLY: Final = b"o"
READY: Final = b"r"
SENTENCE: Final = b"s"
SCHEMA: Final = b"h"
BATCH: Final = b"b"
DONE: Final = b"d"
ERROR: Final = b"e"
MOST: Final = 1 << 31  # bytes of a frame: what Arrow has for a batch
Body: TypeAlias = bytes | memoryview | Mapping[str, Any]
_HEAD: Final = struct.Struct("<cQ")


def send(connection: socket.socket, kind: bytes, body: Body = b"") -> None:
    """Sends a frame, and waits for whoever is slow to take it."""
    data = json.dumps(dict(body)).encode() if isinstance(body, Mapping) else body
    connection.sendall(_HEAD.pack(kind, len(data)))
    connection.sendall(data)


def receive(connection: socket.socket, most: int = MOST) -> tuple[bytes, bytearray] | None:
    """The next frame; None where the other side has ended."""
    head = _exactly(connection, _HEAD.size)
    if head is None:
        return None
    kind, length = _HEAD.unpack(head)
    if length > most:
        raise InvalidFrame(f"A frame of {length:,} bytes is longer than {most:,}.")
    body = _exactly(connection, length)
    return None if body is None else (kind, body)


def fields(body: bytes | bytearray) -> dict[str, Any]:
    """What is in a frame of JSON."""
    try:
        read = json.loads(body)
    except ValueError as error:
        raise InvalidFrame(f"A frame is no JSON: {error}.") from None
    if not isinstance(read, dict):
        raise InvalidFrame("A frame is no JSON object.")
    return read


def _exactly(connection: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        read = connection.recv_into(view)
        if not read:
            return None
        view = view[read:]
    return data
