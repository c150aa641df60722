"""A block: the messages of one commit as an Arrow record batch, with a header that says whose they are.

1. A block holds runs of messages, each run consecutive offsets of one topic, one run after the other.
2. The body is one encapsulated Arrow IPC record batch. A column in which every row is the same is not in it; its value
   stands once in the header. Of one that counts up the header has the first number: `counting`, or `constants` for
   positions.
3. The checksum covers body and header, the body first, so that a staged body can be given a header later without being
   read again.
4. The schema is that of the columns named in the header, in their order, with the types below.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from stafeta.columns import NAMES, TYPES, Block, ColumnBatch
from stafeta.errors import StoreDamaged
from stafeta.message import COUNTER, PAYLOAD, POSITION, Row

_FIELDS = {
    name: pa.field(name, type_, nullable=name == "counter") for name, type_ in zip(NAMES, TYPES, strict=True)
}
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


class Told(NamedTuple):
    """What a header says of the columns that are not in the body."""

    constants: dict[str, Any]
    counting: dict[str, int]


def encode_rows(rows: Sequence[Row]) -> tuple[Told, Any]:
    """What goes into the header, and the body, of a block of rows."""
    columns: list[tuple[Any, ...]] = [tuple([row[index] for row in rows]) for index in range(len(NAMES))]
    told = Told({}, {})
    arrays: dict[str, pa.Array[Any]] = {}
    count = len(rows)
    for index, name in enumerate(NAMES[:PAYLOAD]):
        values = columns[index]
        first = values[0]
        counts = index in (POSITION, COUNTER) and first is not None
        if index != POSITION and values == (first,) * count:
            told.constants[name] = first
        elif counts and values == tuple(range(first, first + count)):
            (told.constants if index == POSITION else told.counting)[name] = first
        else:
            arrays[name] = pa.array(values, TYPES[index])
    arrays["payload"] = pa.array(columns[PAYLOAD], TYPES[PAYLOAD])
    return told, _body(arrays)


def encode_columns(batch: ColumnBatch) -> tuple[Told, Any]:
    """The same for messages that are columns already."""
    told = Told({}, {})
    arrays: dict[str, pa.Array[Any]] = {}
    for index, name in enumerate(NAMES):
        value = batch.block.columns[index]
        if isinstance(value, pa.Array):
            arrays[name] = batch.array(index)
        elif isinstance(value, range):
            told.counting[name] = value.start + batch.row
        else:
            told.constants[name] = value + batch.row if index == POSITION else value
    return told, _body(arrays)


def _body(arrays: dict[str, "pa.Array[Any]"]) -> Any:
    schema = pa.schema([_FIELDS[name] for name in arrays])
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema).serialize()


def make_header(rows: int, told: Told, runs: Sequence[tuple[int, int, int, int, int]]) -> bytes:
    """`runs` are topic, base, count, time and cumulated size of each run, in the order of their rows."""
    header = {"rows": rows, "constants": told.constants, "runs": runs}
    return orjson.dumps(header | {"counting": told.counting} if told.counting else header)


def checksum(header: bytes, body_checksum: int) -> int:
    return zlib.crc32(header, body_checksum)


def verify(block: int, header: bytes, body: bytes, expected: int) -> None:
    if checksum(header, zlib.crc32(body)) != expected:
        raise damaged(block, header)


def damaged(block: int, header: bytes) -> StoreDamaged:
    try:
        runs = ", ".join(
            f"topic {r[0]} offsets {r[1]} to {r[1] + r[2] - 1}" for r in orjson.loads(header)["runs"][:3]
        )
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        runs = "its header is damaged too"
    return StoreDamaged(
        f"Stored batch {block} ({runs}) is damaged: its checksum does not match. "
        "Restore the data folder from a copy, or collect these messages by unsubscribing those who wait for them."
    )


def runs_of(block: int, header: bytes) -> list[Run]:
    runs: list[Run] = []
    row = 0
    for topic, base, count, time, size in orjson.loads(header)["runs"]:
        runs.append(Run(topic, base, count, block, row, time, size))
        row += count
    return runs


def decode(header: bytes, body: bytes) -> Block:
    """Call after `verify`."""
    told = orjson.loads(header)
    rows, constants, counting = told["rows"], told["constants"], told.get("counting", {})
    names = [name for name in NAMES if name not in constants and name not in counting]
    schema = pa.schema([_FIELDS[name] for name in names])
    arrays = pa.ipc.read_record_batch(pa.py_buffer(body), schema).columns
    columns: list[Any] = [constants.get(name) for name in NAMES]
    for name, first in counting.items():
        columns[_INDEX[name]] = range(first, first + rows)
    for name, array in zip(names, arrays, strict=True):
        columns[_INDEX[name]] = array
    return Block(rows, tuple(columns))


def batch_of(name: str, block: Block, run: Run) -> ColumnBatch:
    """The messages of a run, of the topic of this name."""
    return ColumnBatch(name, run.base, run.rows, block, run.row)
