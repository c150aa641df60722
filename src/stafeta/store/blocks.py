"""A block: the messages of one commit as an Arrow record batch, with a header that says whose they are.

1. A block holds runs of messages, each run consecutive offsets of one topic, one run after the other.
2. The body is one encapsulated Arrow IPC record batch. A column in which every row is the same is not in it; its value
   stands once in the header. Of one that counts up the header has the first number: `counting`, or `constants` for
   positions.
3. The checksum covers body and header, the body first, so that a staged body can be given a header later without being
   read again. A header ends with a checksum of its own, which begins with the block's number: what it says can be
   relied on without its body. (Before version 4 of the store it had none.)
4. The schema is that of the columns named in the header, in their order, with the types below.
"""

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
from isal.isal_zlib import crc32

from stafeta.columns import NAMES, TYPES, Block, ColumnBatch
from stafeta.errors import StoreDamaged
from stafeta.message import COUNTER, PAYLOAD, POSITION, Row

_FIELDS = {
    name: pa.field(name, type_, nullable=name == "counter") for name, type_ in zip(NAMES, TYPES, strict=True)
}
_SUM = b"%08x"
_SUM_LENGTH = 8
_MASK = 0xFFFFFFFF
MENDED = (
    4 << 10
)  # bytes up to which a flipped bit is looked for in a body: in more, other damage may look like one
_POLYNOMIAL = 0xEDB88320  # of CRC-32, as zlib has it: what the last bit of the data changes

# The head of an encapsulated Arrow IPC record batch with one row of one binary column, around its three lengths: of
# the body, of the column's data, and the offset at which the row ends.
_BEGIN = bytes.fromhex("ffffffff9800000014000000000000000c0016000600050008000c000c0000000003040018000000")
_MIDDLE = bytes.fromhex(
    "00000a0018000c00040008000a0000004c000000100000000100000000000000"
    "0000000003000000000000000000000000000000000000000000000000000000"
    "08000000000000000800000000000000"
)
_END = bytes.fromhex("000000000100000001000000000000000000000000000000")
_ONE = Struct("<40sq80sq24sii")
_INDEX = {name: index for index, name in enumerate(NAMES)}


class Run(NamedTuple):
    """Where consecutive messages of one topic lie."""

    topic: int
    base: int
    rows: int
    block: int
    row: int
    time: int  # the latest in the topic up to and including this run
    size: int  # bytes of payload in the topic up to and including this run, since it began

    @property
    def end(self) -> int:
        return self.base + self.rows


RunHead: TypeAlias = tuple[int, int, int, int, int]
"""What a header says of a run: topic, base, rows, time and size, as in `Run`. A plain tuple: with many topics there
is one for every message."""


class HeaderColumns(NamedTuple):
    """What a header says of the columns that are not in the body."""

    constants: dict[str, Any]
    counting: dict[str, int]


def encode_rows(rows: Sequence[Row]) -> tuple[HeaderColumns, Any]:
    """What goes into the header, and the body, of a block of rows."""
    if len(rows) == 1:
        return HeaderColumns(dict(zip(NAMES, rows[0][:PAYLOAD], strict=False)), {}), _body_of_one(
            rows[0][PAYLOAD]
        )
    columns: list[tuple[Any, ...]] = [tuple([row[index] for row in rows]) for index in range(len(NAMES))]
    header = HeaderColumns({}, {})
    arrays: dict[str, pa.Array[Any]] = {}
    count = len(rows)
    for index, name in enumerate(NAMES[:PAYLOAD]):
        values = columns[index]
        first = values[0]
        counts = index in (POSITION, COUNTER) and first is not None
        if index != POSITION and values == (first,) * count:
            header.constants[name] = first
        elif counts and values == tuple(range(first, first + count)):
            (header.constants if index == POSITION else header.counting)[name] = first
        else:
            arrays[name] = pa.array(values, TYPES[index])
    arrays["payload"] = pa.array(columns[PAYLOAD], TYPES[PAYLOAD])
    return header, _body(arrays)


def encode_columns(batch: ColumnBatch) -> tuple[HeaderColumns, Any]:
    """The same for messages that are columns already."""
    header, arrays = _apart(batch)
    if batch.count == 1 and len(arrays) == 1:
        return header, _body_of_one(arrays["payload"][0].as_py())
    return header, _body(arrays)


def header_columns(batch: ColumnBatch) -> HeaderColumns:
    """What goes into the header alone, where the body was made before."""
    return _apart(batch)[0]


def _apart(batch: ColumnBatch) -> tuple[HeaderColumns, dict[str, "pa.Array[Any]"]]:
    header = HeaderColumns({}, {})
    arrays: dict[str, pa.Array[Any]] = {}
    for index, name in enumerate(NAMES):
        value = batch.block.columns[index]
        if isinstance(value, pa.Array):
            arrays[name] = batch.array(index)
        elif isinstance(value, range):
            header.counting[name] = value.start + batch.row
        else:
            header.constants[name] = value + batch.row if index == POSITION else value
    return header, arrays


def _body(arrays: dict[str, "pa.Array[Any]"]) -> Any:
    schema = pa.schema([_FIELDS[name] for name in arrays])
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema).serialize()


def _body_of_one(payload: bytes) -> bytes:
    """What `_body` makes of one payload alone, in a tenth of the time."""
    length = len(payload)
    padding = -length % 8
    return b"".join(
        (_ONE.pack(_BEGIN, 8 + length + padding, _MIDDLE, length, _END, 0, length), payload, bytes(padding))
    )


def make_header(
    block: int,
    rows: int,
    columns: HeaderColumns,
    runs: Sequence[RunHead],
    segment: int | None = None,
) -> bytes:
    header = {"rows": rows, "constants": columns.constants, "runs": runs}
    if columns.counting:
        header["counting"] = columns.counting
    if segment is not None:
        header["segment"] = segment
    return _sealed(block, orjson.dumps(header))


def _sealed(block: int, text: bytes) -> bytes:
    return text + _SUM % crc32(text, block & _MASK)


def read_header(block: int, header: bytes) -> dict[str, Any]:
    """What a header says; raises StoreDamaged where it is not as it was written, and that cannot be put right."""
    try:
        content: dict[str, Any] = orjson.loads(_text(block, header))
    except orjson.JSONDecodeError:
        raise damaged(block) from None
    return content


def _text(block: int, header: Any) -> bytes:
    if not isinstance(header, bytes):  # it is what another row has
        raise damaged(block)
    if not has_checksum(header):
        return header
    text, written = header[:-_SUM_LENGTH], header[-_SUM_LENGTH:]
    if not text:
        raise damaged(block)
    found = crc32(text, block & _MASK)
    if written == _SUM % found:
        return text
    if _flips(written, _SUM % found) == 1:  # in the checksum itself
        return text
    try:
        return put_right(text, int(written, 16) ^ found)
    except ValueError:
        raise damaged(block) from None


def _flips(one: bytes, other: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def put_right(data: bytes, off: int) -> bytes:
    """Data of which one bit was flipped, as it was: by how much its CRC-32 is off says which, since that is linear.
    Raises ValueError where it was not one bit."""
    if off.bit_count() == 1:  # a bit of the checksum itself
        return data
    change = _POLYNOMIAL  # that the last bit makes; from there backwards
    # The bits of a byte count from the lowest, so from the last bit to the first is from the highest of the last byte.
    for bit in range(8 * len(data) - 1, -1, -1):
        if change == off:
            mended = bytearray(data)
            mended[bit // 8] ^= 1 << bit % 8
            return bytes(mended)
        change = change >> 1 ^ (_POLYNOMIAL if change & 1 else 0)
    raise ValueError


def has_checksum(header: Any) -> bool:
    """Whether a header can be relied on without its body."""
    return not isinstance(header, bytes) or not header.endswith(b"}")


def checksum(header: bytes, body_checksum: int) -> int:
    return crc32(header, body_checksum)


def verified(block: int, header: Any, body: bytes, expected: Any) -> tuple[bytes, bytes]:
    """Header and body as they were written; raises StoreDamaged where they are not, and cannot be put right."""
    if not isinstance(header, bytes) or not isinstance(expected, int):
        raise damaged(block)
    found = checksum(header, crc32(body))
    if found == expected:
        return header, body
    if has_checksum(header):  # and a flipped bit in it is put right by itself
        header = _sealed(block, _text(block, header))
        found = checksum(header, crc32(body))
    if len(body) > MENDED and (found ^ expected).bit_count() > 1:
        raise damaged(block)
    try:
        whole = put_right(body + header, found ^ expected) if found != expected else body + header
    except ValueError:
        raise damaged(block) from None
    return whole[len(body) :], whole[: len(body)]


def damaged(block: int) -> StoreDamaged:
    return StoreDamaged(f"Stored batch {block} is damaged: its checksum does not match.")


def runs_of(block: int, header: bytes) -> list[Run]:
    return _runs(block, read_header(block, header))


def _runs(block: int, content: dict[str, Any]) -> list[Run]:
    runs: list[Run] = []
    row = 0
    for topic, base, count, time, size in content["runs"]:
        runs.append(Run(topic, base, count, block, row, time, size))
        row += count
    return runs


def decode(block: int, header: bytes, body: bytes) -> tuple[Block, list[Run]]:
    """The messages, and whose they are. Call with what `verified` gave."""
    content = read_header(block, header)
    return _decoded(content, body), _runs(block, content)


def _decoded(content: dict[str, Any], body: bytes) -> Block:
    rows, constants, counting = content["rows"], content["constants"], content.get("counting", {})
    names = tuple([name for name in NAMES if name not in constants and name not in counting])
    arrays = pa.ipc.read_record_batch(pa.py_buffer(body), _schema(names)).columns
    columns: list[Any] = [constants.get(name) for name in NAMES]
    for name, first in counting.items():
        columns[_INDEX[name]] = range(first, first + rows)
    for name, array in zip(names, arrays, strict=True):
        columns[_INDEX[name]] = array
    return Block(rows, tuple(columns))


@cache
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([_FIELDS[name] for name in names])


def batch_of(name: str, block: Block, run: Run) -> ColumnBatch:
    """The messages of a run, of the topic of this name."""
    return ColumnBatch(name, run.base, run.rows, block, run.row)
