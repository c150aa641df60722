"""What an Arrow stream says of itself, looked at before Arrow reads it: a small body may say that it is a large one.

A compressed buffer begins with the size that it has without compression, and Arrow allocates that. So the sizes are
summed up first, from the metadata of each message: flatbuffers, which Arrow has verified when it read them. The numbers
of fields are those of Arrow's Message.fbs.
"""

from struct import Struct
from typing import Any, Final

import pyarrow as pa

from stafeta.doors.http.incoming import MAX_MESSAGES, too_many
from stafeta.doors.http.problems import HttpProblem
from stafeta.errors import InvalidMessage

MAX_BATCHES: Final = 1000  # of a stream
MAX_METADATA: Final = 64 << 10  # bytes of a message's metadata
MAX_DICTIONARIES: Final = 1 << 20  # bytes of all: each batch that uses one looks through it
_U16, _I32, _U32, _I64 = (Struct(form) for form in ("<H", "<i", "<I", "<q"))
_COMPRESSED: Final = 8  # bytes that say how large a buffer is


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: Any, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _I32.unpack_from(data, at)[0]
        self._size = _U16.unpack_from(data, self._fields)[0]

    def _place(self, field: int) -> int:
        """Where a field is; 0 where it is left out."""
        entry = 4 + 2 * field
        if entry >= self._size:
            return 0
        offset: int = _U16.unpack_from(self._data, self._fields + entry)[0]
        return offset and self._at + offset

    def number(self, field: int, form: Struct = _I64) -> int:
        place = self._place(field)
        return int(form.unpack_from(self._data, place)[0]) if place else 0

    def flag(self, field: int) -> bool:
        place = self._place(field)
        return bool(place and self._data[place])

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return _Table(self._data, place + _U32.unpack_from(self._data, place)[0]) if place else None

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structures of two numbers."""
        place = self._place(field)
        if not place:
            return []
        place += _U32.unpack_from(self._data, place)[0]
        numbers = memoryview(self._data)[place + 4 :][: 16 * _U32.unpack_from(self._data, place)[0]].cast("q")
        return list(zip(numbers[::2], numbers[1::2], strict=True))


def check(body: bytes, most: int) -> None:
    """Refuses a stream that has too many messages, or would take more than so many bytes. What Arrow cannot read raises
    Arrow's own errors."""
    source = pa.BufferReader(body)
    messages = pa.ipc.MessageReader.open_stream(source)
    rows = size = dictionaries = batches = 0
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        metadata = bytes(message.metadata)
        if len(metadata) > MAX_METADATA:
            raise InvalidMessage(f"The stream describes itself with more than {MAX_METADATA} bytes at once.")
        root = _Table(metadata, _U32.unpack_from(metadata, 0)[0])
        found = root.table(2)
        if message.type == "schema" or found is None:
            continue
        if message.type == "dictionary":
            if found.flag(2):
                raise InvalidMessage("The stream has a dictionary that grows; send whole ones, or none.")
            found = found.table(1)
        elif message.type != "record batch":
            raise InvalidMessage(f"The stream has a {message.type} in it; it must be record batches.")
        if found is None:
            continue
        count, taken = max(found.number(0), 0), _size(found, memoryview(message.body or b""))
        size += taken
        if message.type == "dictionary":
            dictionaries += taken
        else:
            rows += count
        batches += 1
        if rows > MAX_MESSAGES or count > MAX_MESSAGES:
            raise too_many()
        if batches > MAX_BATCHES:
            raise InvalidMessage(f"The stream has more than {MAX_BATCHES} batches; send larger ones.")
        if dictionaries > MAX_DICTIONARIES:
            raise InvalidMessage(f"The dictionaries of the stream have more than {MAX_DICTIONARIES} bytes.")
        if size > most:
            raise too_large(most)
    if source.tell() != len(body):
        raise InvalidMessage("There is more behind the end of the stream; a request has one.")


def _size(batch: _Table, body: memoryview) -> int:
    """The bytes of a batch's buffers, without compression. What does not lie within its body, Arrow refuses."""
    compressed = batch.table(3) is not None
    size = 0
    for offset, length in batch.pairs(2):
        if not compressed:
            size += max(length, 0)
        elif length >= _COMPRESSED and 0 <= offset <= len(body) - _COMPRESSED:
            (said,) = _I64.unpack_from(body, offset)
            size += said if said >= 0 else length - _COMPRESSED
    return size


def too_large(most: int) -> HttpProblem:
    return HttpProblem(
        413,
        f"The messages have more than {most} bytes without compression and dictionaries (http.max_body). Send them in "
        "several requests.",
    )
