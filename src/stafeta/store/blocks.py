"""A block: the messages of one commit as an Arrow record batch, with a header that says whose they are.

1. A block holds runs of messages, each run consecutive offsets of one topic, one run after the other.
2. The body is one encapsulated Arrow IPC record batch. A column in which every row is the same is not in it; its value
   stands once in the header. Positions that simply count up are such a column too.
3. The checksum covers body and header, the body first, so that a staged body can be given a header later without being
   read again.
4. The schema is that of the columns named in the header, in their order, with the types below.
"""

import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stafeta.errors import StoreDamaged
from stafeta.message import PAYLOAD, POSITION, TIME, Batch, Row

NAMES = ("position", "time", "producer", "source", "kind", "counter", "payload")
TYPES = (
    pa.int64(),
    pa.timestamp("us", tz="UTC"),
    pa.string(),
    pa.string(),
    pa.int8(),
    pa.int64(),
    pa.binary(),
)
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
    time: int  # of the last message
    size: int  # bytes of payload in the topic up to and including this run, since it began

    @property
    def end(self) -> int:
        return self.base + self.rows


class Block(NamedTuple):
    """A block read back: the constant columns by value, the others as Arrow arrays."""

    rows: int
    columns: tuple[Any, ...]  # by index; an Arrow array, or the constant

    @property
    def last_position(self) -> int:
        column = self.columns[POSITION]
        if isinstance(column, pa.Array):
            return max(position.as_py() or 0 for position in column)
        return int(column) + self.rows - 1

    def batch(self, topic: str, run: Run) -> "ColumnBatch":
        return ColumnBatch(topic, run.base, run.rows, self, run.row)


def encode_rows(rows: Sequence[Row]) -> tuple[dict[str, Any], Any]:
    """The constants and the body of a block of rows."""
    columns: list[tuple[Any, ...]] = [tuple([row[index] for row in rows]) for index in range(len(NAMES))]
    constants: dict[str, Any] = {}
    names: list[str] = []
    arrays: list[pa.Array[Any]] = []
    count = len(rows)
    for index, name in enumerate(NAMES[:PAYLOAD]):
        values = columns[index]
        first = values[0]
        alike = tuple(range(first, first + count)) if index == POSITION else (first,) * count
        constant = values == alike
        if constant:
            constants[name] = first
        else:
            names.append(name)
            arrays.append(pa.array(values, TYPES[index]))
    names.append("payload")
    arrays.append(pa.array(columns[PAYLOAD], TYPES[PAYLOAD]))
    schema = pa.schema([_FIELDS[name] for name in names])
    return constants, pa.RecordBatch.from_arrays(arrays, schema=schema).serialize()


def make_header(
    rows: int, constants: dict[str, Any], runs: Sequence[tuple[int, int, int, int, int]]
) -> bytes:
    """`runs` are topic, base, count, time and cumulated size of each run, in the order of their rows."""
    return orjson.dumps({"rows": rows, "constants": constants, "runs": runs})


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
    constants = told["constants"]
    names = [name for name in NAMES if name not in constants]
    schema = pa.schema([_FIELDS[name] for name in names])
    arrays = pa.ipc.read_record_batch(pa.py_buffer(body), schema).columns
    columns: list[Any] = [constants.get(name) for name in NAMES]
    for name, array in zip(names, arrays, strict=True):
        columns[_INDEX[name]] = array
    return Block(told["rows"], tuple(columns))


SMALL = 1024  # rows below which a batch is worth being joined with its neighbours
PART = 4  # a batch that is less than this part of its block is taken out of it, which need not stay in memory then


def joined(batches: "Sequence[ColumnBatch]") -> "list[ColumnBatch]":
    """Batches of one topic, in order, with small neighbours made one: commits may have held a message each."""
    made: list[ColumnBatch] = []
    together: list[ColumnBatch] = []
    for batch in batches:
        if together and (batch.count >= SMALL or batch.base != together[-1].end):
            made.append(_one(together))
            together = []
        if batch.count < SMALL:
            together.append(batch)
        else:
            made.append(batch)
    return [*made, _one(together)] if together else made


def _one(batches: "list[ColumnBatch]") -> "ColumnBatch":
    first = batches[0]
    if len(batches) == 1 and first.count * PART > first.block.rows:
        return first
    rows = sum([batch.count for batch in batches])
    columns = []
    for index, type_ in enumerate(TYPES):
        values = [batch.block.columns[index] for batch in batches]
        if index == POSITION:
            columns.append(_positions(batches))
        elif not any(isinstance(value, pa.Array) for value in values) and values.count(values[0]) == len(
            values
        ):
            columns.append(values[0])
        else:
            columns.append(
                pa.concat_arrays([_array(*each, type_) for each in zip(values, batches, strict=True)])
            )
    return ColumnBatch(first.topic, first.base, rows, Block(rows, tuple(columns)), 0)


def _array(value: Any, batch: "ColumnBatch", type_: Any) -> Any:
    """A column of a batch as an Arrow array, also where it is a constant."""
    if isinstance(value, pa.Array):
        return value.slice(batch.row, batch.count)
    return pa.repeat(pa.scalar(value, type_), batch.count)


def _positions(batches: "list[ColumnBatch]") -> Any:
    starts = [batch.block.columns[POSITION] for batch in batches]
    if not any(isinstance(start, pa.Array) for start in starts):
        firsts = [start + batch.row for start, batch in zip(starts, batches, strict=True)]
        if all(a + batch.count == b for (a, b), batch in zip(pairwise(firsts), batches[:-1], strict=True)):
            return firsts[0]
    return pa.concat_arrays([pa.array(batch.positions, TYPES[POSITION]) for batch in batches])


class ColumnBatch(Batch):
    """A batch whose messages lie in a block."""

    __slots__ = ("block", "row")

    def __init__(self, topic: str, base: int, count: int, block: Block, row: int) -> None:
        super().__init__(topic, base, count)
        self.block = block
        self.row = row

    @property
    def size(self) -> int:
        start, stop = self._offsets(self.row), self._offsets(self.row + self.count)
        return stop - start

    def _offsets(self, row: int) -> int:
        array = self.block.columns[PAYLOAD]
        return int(memoryview(array.buffers()[1]).cast("i")[array.offset + row])

    def cut(self, start: int, stop: int) -> "ColumnBatch":
        start = max(start, self.base)
        stop = min(stop, self.end)
        if start == self.base and stop == self.end:
            return self
        return ColumnBatch(self.topic, start, stop - start, self.block, self.row + start - self.base)

    def column(self, index: int) -> Sequence[object]:
        if index == PAYLOAD:
            return self.payloads
        if index == POSITION:
            return self.positions
        value = self.block.columns[index]
        if not isinstance(value, pa.Array):
            return [value] * self.count
        value = value.slice(self.row, self.count)
        if index == TIME:
            value = value.cast(pa.int64())
        values: list[object] = value.to_pylist()
        return values

    @property
    def payloads(self) -> Sequence[bytes]:
        # Through the buffers: an Arrow scalar for each value would cost several times as much.
        array = self.block.columns[PAYLOAD]
        _, offsets, data = array.buffers()
        first = array.offset + self.row
        ends = memoryview(offsets).cast("i")[first : first + self.count + 1].tolist()
        start = ends[0]
        if data is None:
            return [b""] * self.count
        chunk = data[start : ends[-1]].to_pybytes()
        return [chunk[a - start : b - start] for a, b in pairwise(ends)]

    @property
    def positions(self) -> Sequence[int]:
        value = self.block.columns[POSITION]
        if isinstance(value, pa.Array):
            return cast("list[int]", value.slice(self.row, self.count).to_pylist())
        return range(value + self.row, value + self.row + self.count)

    def constant(self, index: int) -> object:
        value = self.block.columns[index]
        return None if index == POSITION or isinstance(value, pa.Array) else value

    @property
    def lengths(self) -> set[int]:
        return set(pc.unique(pc.binary_length(self._payloads)).to_pylist())

    def framed(self, heads: Mapping[int, bytes]) -> bytes:
        # In Arrow's own loops: no message becomes a Python object.
        payloads = self._payloads
        head: Any = pa.scalar(next(iter(heads.values())), pa.binary())
        if len(heads) > 1:
            places = pc.index_in(pc.binary_length(payloads), pa.array(heads, pa.int32()))
            head = pa.array(heads.values(), pa.binary()).take(places)
        joined = pc.binary_join_element_wise(head, payloads, pa.scalar(b"", pa.binary()))
        _, offsets, data = joined.buffers()
        ends = memoryview(offsets).cast("i")[joined.offset : joined.offset + self.count + 1]
        return data[ends[0] : ends[-1]].to_pybytes() if data is not None else b""

    @property
    def _payloads(self) -> Any:
        return self.block.columns[PAYLOAD].slice(self.row, self.count)

    @property
    def last_position(self) -> int:
        value = self.block.columns[POSITION]
        last = self.row + self.count - 1
        return int(value[last].as_py() if isinstance(value, pa.Array) else value + last)
