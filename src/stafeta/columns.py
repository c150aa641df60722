"""Batches whose messages lie in Arrow arrays: what came out of the store, or in from an Arrow client.

1. A block is the columns of consecutive rows. A column in which every row is the same is kept as that one value, one
   that counts up as a `range` (positions, which always do within a commit of one topic, as their first number).
2. A batch is a part of a block: many batches share one, and cutting copies nothing.
3. Nothing here makes a Python object of a row unless it is asked for `column` or `payloads`.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from stafeta.message import COUNTER, PAYLOAD, POSITION, PRODUCER, SOURCE, TIME, Batch

NAMES: Final = ("position", "time", "producer", "source", "kind", "counter", "payload")
TYPES: Final = (
    pa.int64(),
    pa.timestamp("us", tz="UTC"),
    pa.string(),
    pa.string(),
    pa.int8(),
    pa.int64(),
    pa.binary(),
)


_SPREAD: Final = (pa.Array, range)  # what a column is that is not the same in every row
_compute: Any = pc  # its types do not know all of it


def counting(start: int, stop: int, step: int = 1) -> Any:
    """The numbers from `start` up to, not including, `stop` as an Arrow array."""
    return cast("Any", pa).arange(start, stop, step)  # its types do not know it yet


class Repeats:
    """Arrays full of one text, of several columns. Mostly it is the same as the last time: then it is there already."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Any]] = {}

    def array(self, column: str, value: str, count: int) -> Any:
        known, array = self._known.get(column, ("", None))
        if array is None or known != value or len(array) < count:
            array = pa.repeat(pa.scalar(value), count)
            self._known[column] = value, array
        return array.slice(0, count)


class Block(NamedTuple):
    """The constant columns by value, the others as Arrow arrays."""

    rows: int
    columns: tuple[Any, ...]  # by index; an Arrow array, a range, or the constant

    @property
    def last_position(self) -> int:
        column = self.columns[POSITION]
        if isinstance(column, pa.Array):
            return int(pc.max(column).as_py() or 0)
        return int(column) + self.rows - 1


SMALL = 1024  # rows below which a batch is worth being joined with its neighbours
PART = 4  # a batch that is less than this part of its block is taken out of it, which need not stay in memory then


def joined(batches: "Sequence[ColumnBatch]") -> "list[ColumnBatch]":
    """Batches of one topic, in order, with small neighbours made one: commits may have held a message each."""
    made: list[ColumnBatch] = []
    some: list[ColumnBatch] = []
    for batch in _whole(batches):
        if some and (batch.count >= SMALL or batch.base != some[-1].end):
            made.append(_one(some))
            some = []
        if batch.count < SMALL:
            some.append(batch)
        else:
            made.append(batch)
    return [*made, _one(some)] if some else made


def as_columns(batch: Batch) -> "ColumnBatch":
    """The same messages as columns."""
    if isinstance(batch, ColumnBatch):
        return batch
    columns: list[Any] = []
    for index, type_ in enumerate(TYPES):
        values = batch.column(index)
        constant = index not in (POSITION, PAYLOAD) and values.count(values[0]) == batch.count
        columns.append(values[0] if constant else pa.array(values, type_))
    return ColumnBatch(batch.topic, batch.base, batch.count, Block(batch.count, tuple(columns)), 0)


def _whole(batches: "Sequence[ColumnBatch]") -> "list[ColumnBatch]":
    """With neighbours that lie side by side in one block made one again."""
    made: list[ColumnBatch] = []
    for batch in batches:
        last = made[-1] if made else None
        if (
            last
            and last.block is batch.block
            and (last.end, last.row + last.count) == (batch.base, batch.row)
        ):
            made[-1] = ColumnBatch(last.topic, last.base, last.count + batch.count, last.block, last.row)
        else:
            made.append(batch)
    return made


def _one(batches: "list[ColumnBatch]") -> "ColumnBatch":
    first = batches[0]
    if len(batches) == 1 and first.count * PART > first.block.rows:
        return first
    block = together(batches)
    return ColumnBatch(first.topic, first.base, block.rows, block, 0)


def together(batches: "Sequence[ColumnBatch]", wanted: Container[int] = range(len(NAMES))) -> Block:
    """The messages of several batches, of any topics, one after the other; only the columns that are wanted."""
    rows = sum([batch.count for batch in batches])
    columns = enumerate(zip(*[batch.block.columns for batch in batches], strict=True))
    made = [_together(index, values, batches) if index in wanted else None for index, values in columns]
    return Block(rows, tuple(made))


def side_by_side(batches: "Sequence[ColumnBatch]") -> "list[ColumnBatch]":
    """The same rows in fewer batches: those that lie side by side in one block, of whatever topics, are one."""
    made: list[ColumnBatch] = []
    for batch in batches:
        last = made[-1] if made else None
        if last and last.block is batch.block and last.row + last.count == batch.row:
            made[-1] = ColumnBatch("", 0, last.count + batch.count, last.block, last.row)
        else:
            made.append(batch)
    return made


def _together(index: int, values: tuple[Any, ...], batches: "Sequence[ColumnBatch]") -> Any:
    """One column of several batches, of whose blocks these are the columns."""
    if index == POSITION:
        return _positions(values, batches)
    if all(isinstance(value, pa.Array) for value in values):
        slices = [value.slice(batch.row, batch.count) for value, batch in zip(values, batches, strict=True)]
        return pa.concat_arrays(slices)
    if index == COUNTER and all(isinstance(value, range) for value in values):
        return _counters(batches)
    if not any(isinstance(value, _SPREAD) for value in values) and values.count(values[0]) == len(values):
        return values[0]
    return pa.concat_arrays([batch.array(index) for batch in batches])


def _counters(batches: "Sequence[ColumnBatch]") -> Any:
    counted = [batch.block.columns[COUNTER][batch.row : batch.row + batch.count] for batch in batches]
    if all(a.stop == b.start for a, b in pairwise(counted)):
        return range(counted[0].start, counted[-1].stop)
    return pa.concat_arrays([counting(each.start, each.stop) for each in counted])


def _positions(starts: tuple[Any, ...], batches: "Sequence[ColumnBatch]") -> Any:
    if any(isinstance(start, pa.Array) for start in starts):
        return pa.concat_arrays([batch.array(POSITION) for batch in batches])
    firsts = [start + batch.row for start, batch in zip(starts, batches, strict=True)]
    if all(a + batch.count == b for (a, b), batch in zip(pairwise(firsts), batches[:-1], strict=True)):
        return firsts[0]
    # Of many small batches, an array for each would take longer than all else.
    counted = [(first, batch.count) for first, batch in zip(firsts, batches, strict=True) if batch.count]
    ends = [0, *accumulate([count for _, count in counted])]
    shifts = [first - start for (first, _), start in zip(counted, ends, strict=False)]
    runs: Any = pa.RunEndEncodedArray.from_arrays(
        pa.array(ends[1:], pa.int64()), pa.array(shifts, pa.int64())
    )
    return _compute.add(_compute.run_end_decode(runs), counting(0, ends[-1]))


class ColumnBatch(Batch):
    """A batch whose messages lie in a block."""

    __slots__ = ("_size", "ahead", "block", "row")

    def __init__(self, topic: str, base: int, count: int, block: Block, row: int) -> None:
        super().__init__(topic, base, count)
        self.block = block
        self.row = row
        self.ahead: Sequence[Any] = ()  # what the store has of it before its commit: `Store.write_ahead`
        self._size = -1

    def placed(
        self, base: int, position: int, time: int, producer: str, source: str, counter: int | None
    ) -> "ColumnBatch":
        """The same messages with all that the broker says of them; their own times stay, where they have any."""
        columns = list(self.block.columns)
        if self.count != self.block.rows:
            columns = [self.array(at) if isinstance(one, pa.Array) else one for at, one in enumerate(columns)]
        columns[POSITION] = position
        if not isinstance(columns[TIME], pa.Array):
            columns[TIME] = columns[TIME] or time
        columns[PRODUCER], columns[SOURCE] = producer, source
        columns[COUNTER] = None if counter is None else range(counter, counter + self.count)
        placed = ColumnBatch(self.topic, base, self.count, Block(self.count, tuple(columns)), 0)
        placed._size = self.size
        placed.ahead = self.ahead
        return placed

    def array(self, index: int) -> Any:
        """One field as an Arrow array, also where it is a constant."""
        value = self.block.columns[index]
        if isinstance(value, pa.Array):
            return value.slice(self.row, self.count)
        if isinstance(value, range):
            return counting(value.start + self.row, value.start + self.row + self.count)
        if index == POSITION:
            return counting(value + self.row, value + self.row + self.count)
        return pa.repeat(cast("Any", pa.scalar(value, TYPES[index])), self.count)

    @property
    def latest(self) -> int:
        """The latest of the messages' times."""
        value = self.block.columns[TIME]
        if isinstance(value, pa.Array):
            return int(pc.max(self.array(TIME).view(pa.int64())).as_py())
        return int(value)

    @property
    def counted(self) -> range | None:
        value = self.block.columns[COUNTER]
        if isinstance(value, range) and self.constant(PRODUCER) is not None:
            return value[self.row : self.row + self.count]
        return None

    @property
    def longest(self) -> int:
        return int(pc.max(pc.binary_length(self._payloads)).as_py() or 0)

    @property
    def size(self) -> int:
        if self._size < 0:
            array = self.block.columns[PAYLOAD]
            ends, first = memoryview(array.buffers()[1]).cast("i"), array.offset + self.row
            self._size = ends[first + self.count] - ends[first]
        return self._size

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
        if isinstance(value, range):
            return value[self.row : self.row + self.count]
        if not isinstance(value, pa.Array):
            return [value] * self.count
        value = value.slice(self.row, self.count)
        if index == TIME:
            value = value.view(pa.int64())  # a cast takes five times as long
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
        return None if index == POSITION or isinstance(value, pa.Array | range) else value

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
