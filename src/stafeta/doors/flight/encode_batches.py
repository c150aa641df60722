"""Batches of the broker's as Arrow clients get them.

1. A batch leaves as it was stored; what is constant in it is spelt out.
2. Messages of several topics come in the order in which they were published, in one batch.
3. Who asks for marks gets one with each batch, that of its last row.
4. Who asks for runs gets the columns of text run-end encoded: what is constant goes as one value. Of one topic, the
   offset of a batch's first row is in its metadata, so that nobody needs the column.
5. Who asks for spans gets each topic in batches of its own, whose metadata have its name, too; or several together,
   with metadata that list the runs of rows of one topic with offsets that follow each other.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stafeta.columns import ColumnBatch, Repeats, as_columns, counting, joined, side_by_side, together
from stafeta.message import COUNTER, KIND, PAYLOAD, POSITION, PRODUCER, SOURCE, TIME, Batch, Kind

_FIELDS: Final[dict[str, Any]] = {
    "topic": pa.field("topic", pa.string(), nullable=False),
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    "producer": pa.field("producer", pa.string(), nullable=False),
    "source": pa.field("source", pa.string(), nullable=False),
    "kind": pa.field("kind", pa.string(), nullable=False),
    "payload": pa.field("payload", pa.binary(), nullable=False),
    "counter": pa.field("counter", pa.int64()),
    "position": pa.field("position", pa.int64(), nullable=False),
}
_compute: Any = pc  # its types do not know all of it
_INDEX: Final = {
    "timestamp": TIME,
    "producer": PRODUCER,
    "source": SOURCE,
    "kind": KIND,
    "payload": PAYLOAD,
    "counter": COUNTER,
    "position": POSITION,
}
_RUNS: Final = frozenset(name for name, field in _FIELDS.items() if field.type == pa.string())
_WORDS: Final = pa.array([kind.word for kind in Kind])


def schema_of(columns: Sequence[str], *, runs: bool = False) -> pa.Schema:
    fields = [_FIELDS[name] for name in columns]
    return pa.schema([_in_runs(field) if runs and field.name in _RUNS else field for field in fields])


def _in_runs(field: Any) -> Any:
    return field.with_type(pa.run_end_encoded(pa.int32(), field.type))


class BatchEncoder:
    """One stream's batches: these columns, at most so many rows each."""

    def __init__(
        self,
        columns: Sequence[str],
        batch_rows: int,
        limit: int | None,
        *,
        runs: bool = False,
        mark: Callable[[int], str] | None = None,
        apart: bool = False,
        together: bool = False,
    ) -> None:
        """With `apart`, no batch has messages of several topics, and each has its topic in its metadata. With
        `together` messages come as they lie in the log, and the metadata say which are whose."""
        self._together = together
        self._apart = apart
        self.schema = schema_of(columns, runs=runs)
        self._runs = runs
        self._mark = mark
        self._columns = columns
        self._rows = batch_rows
        self._left = limit
        self._repeats = Repeats()

    @property
    def done(self) -> bool:
        return self._left is not None and self._left <= 0

    def batches(self, portion: Sequence[Batch]) -> Iterator[pa.RecordBatch | tuple[pa.RecordBatch, bytes]]:
        """What a stream hands out together; if asked for, with the metadata that says where it begins and ends."""
        found = [as_columns(batch) for batch in portion]
        if self._together:
            yield from self._of_all(found)
            return
        topic = found[0].topic
        if self._apart or all(batch.topic == topic for batch in found):
            for _, ones in groupby(found, attrgetter("topic")):
                yield from self._of_one_topic(list(ones))
            return
        positions = pa.concat_arrays([batch.array(POSITION) for batch in found])
        order = pc.sort_indices(positions)
        columns = [pa.concat_arrays([self._plain(batch, name) for batch in found]) for name in self._columns]
        for start in range(0, len(order), self._rows):
            if rows := self._within(min(self._rows, len(order) - start)):
                last = positions[order[start + rows - 1].as_py()].as_py()
                yield self._with_metadata(self._merged(columns, order.slice(start, rows)), last)

    def _of_one_topic(
        self, found: list[ColumnBatch]
    ) -> Iterator[pa.RecordBatch | tuple[pa.RecordBatch, bytes]]:
        for batch in joined(found):
            for start in range(batch.base, batch.end, self._rows):
                if rows := self._within(min(self._rows, batch.end - start)):
                    part = batch.cut(start, start + rows)
                    yield self._with_metadata(self._made(part), part.last_position, start, batch.topic)

    def _of_all(self, found: list[ColumnBatch]) -> Iterator[pa.RecordBatch | tuple[pa.RecordBatch, bytes]]:
        left, total = deque(found), sum([batch.count for batch in found])
        while total and (rows := self._within(min(self._rows, total))):
            total -= rows
            yield self._of_several(_taken(left, rows), rows)

    def _of_several(self, found: list[ColumnBatch], rows: int) -> tuple[pa.RecordBatch, bytes]:
        """One batch of batches of any topics."""
        ends: Any = pa.array(accumulate([batch.count for batch in found]), pa.int32())
        block = together(side_by_side(found), [_INDEX[name] for name in self._columns if name in _INDEX])
        whole = ColumnBatch("", 0, rows, block, 0)
        arrays: list[Any] = []
        for name in self._columns:
            if name == "topic":
                topics = pa.RunEndEncodedArray.from_arrays(ends, pa.array([batch.topic for batch in found]))
                arrays.append(topics if self._runs else _compute.run_end_decode(topics))
            elif name == "offset":
                starts = [0, *ends.to_pylist()]
                shifts = [batch.base - start for batch, start in zip(found, starts, strict=False)]
                spread = pa.RunEndEncodedArray.from_arrays(ends, pa.array(shifts, pa.int64()))
                arrays.append(_compute.add(_compute.run_end_decode(spread), counting(0, rows)))
            else:
                arrays.append(self._array(whole, name))
        metadata: dict[str, object] = {"runs": [(batch.topic, batch.base, batch.count) for batch in found]}
        if self._mark is not None:
            metadata["mark"] = self._mark(max([batch.last_position for batch in found]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), orjson.dumps(metadata)

    def _with_metadata(
        self, batch: pa.RecordBatch, last: int, offset: int | None = None, topic: str | None = None
    ) -> pa.RecordBatch | tuple[pa.RecordBatch, bytes]:
        """The batch with its metadata: the mark of its last position, and the offset of its first row."""
        metadata: dict[str, object] = {"topic": topic} if self._apart else {}
        if (self._runs or self._apart) and offset is not None:
            metadata["offset"] = offset
        if self._mark is not None:
            metadata["mark"] = self._mark(last)
        return (batch, orjson.dumps(metadata)) if metadata else batch

    def _within(self, rows: int) -> int:
        """What the limit leaves of so many rows."""
        if self._left is not None:
            rows = min(rows, self._left)
            self._left -= rows
        return rows

    def _made(self, batch: ColumnBatch) -> pa.RecordBatch:
        arrays = [self._array(batch, name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _merged(self, columns: list[Any], order: Any) -> pa.RecordBatch:
        arrays = []
        for name, column in zip(self._columns, columns, strict=True):
            array = column.take(order)
            arrays.append(_compute.run_end_encode(array) if self._runs and name in _RUNS else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, batch: ColumnBatch, name: str) -> Any:
        if not self._runs or name not in _RUNS:
            return self._plain(batch, name)
        if name == "topic" or not isinstance(batch.block.columns[_INDEX[name]], pa.Array):
            value = self._plain(batch, name).slice(0, 1)
            return pa.RunEndEncodedArray.from_arrays(pa.array([batch.count], pa.int32()), value)
        return _compute.run_end_encode(self._plain(batch, name))

    def _plain(self, batch: ColumnBatch, name: str) -> Any:
        if name == "offset":
            return counting(batch.base, batch.end)
        if name == "topic":
            return self._repeats.array(name, batch.topic, batch.count)
        index = _INDEX[name]
        value = batch.block.columns[index]
        if index == KIND:
            if isinstance(value, pa.Array):
                return _WORDS.take(batch.array(KIND))
            return self._repeats.array(name, Kind(value).word, batch.count)
        if isinstance(value, pa.Array | range) or index in (POSITION, COUNTER, TIME):
            return batch.array(index)
        return self._repeats.array(name, value, batch.count)


def _taken(left: deque[ColumnBatch], rows: int) -> list[ColumnBatch]:
    """The first rows, so many, of batches that are left."""
    taken: list[ColumnBatch] = []
    while rows:
        batch = left.popleft()
        if batch.count > rows:
            left.appendleft(batch.cut(batch.base + rows, batch.end))
            batch = batch.cut(batch.base, batch.base + rows)
        taken.append(batch)
        rows -= batch.count
    return taken
