"""Batches of the broker's as Arrow clients get them.

1. A batch leaves as it was stored; what is constant in it is spelt out.
2. Messages of several topics come in the order in which they were published, in one batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stafeta.columns import ColumnBatch, as_columns, counting, joined
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
_INDEX: Final = {
    "timestamp": TIME,
    "producer": PRODUCER,
    "source": SOURCE,
    "kind": KIND,
    "payload": PAYLOAD,
    "counter": COUNTER,
    "position": POSITION,
}
_WORDS: Final = pa.array([kind.word for kind in Kind])


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([_FIELDS[name] for name in columns])


class Outflow:
    """One stream's batches: these columns, at most so many rows each."""

    def __init__(self, columns: Sequence[str], batch_rows: int, limit: int | None) -> None:
        self.schema = schema_of(columns)
        self._columns = columns
        self._rows = batch_rows
        self._left = limit
        self._repeats: dict[str, tuple[object, Any]] = {}  # of a column: the value, and an array full of it

    @property
    def done(self) -> bool:
        return self._left is not None and self._left <= 0

    def batches(self, portion: Sequence[Batch]) -> Iterator[pa.RecordBatch]:
        """What a stream hands out together."""
        found = [as_columns(batch) for batch in portion]
        topic = found[0].topic
        if all(batch.topic == topic for batch in found):
            for batch in joined(found):
                for start in range(batch.base, batch.end, self._rows):
                    yield from self._within(self._made(batch.cut(start, start + self._rows)))
            return
        merged = self._merged(found)
        for start in range(0, merged.num_rows, self._rows):
            yield from self._within(merged.slice(start, self._rows))

    def _within(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the limit leaves of a batch."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            yield batch

    def _made(self, batch: ColumnBatch) -> pa.RecordBatch:
        arrays = [self._array(batch, name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _merged(self, batches: list[ColumnBatch]) -> pa.RecordBatch:
        order = pc.sort_indices(pa.concat_arrays([batch.array(POSITION) for batch in batches]))
        arrays = [
            pa.concat_arrays([self._array(batch, name) for batch in batches]).take(order)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, batch: ColumnBatch, name: str) -> Any:
        if name == "offset":
            return counting(batch.base, batch.end)
        if name == "topic":
            return self._repeated(name, batch.topic, batch.count)
        index = _INDEX[name]
        value = batch.block.columns[index]
        if index == KIND:
            if isinstance(value, pa.Array):
                return _WORDS.take(batch.array(KIND))
            return self._repeated(name, Kind(value).word, batch.count)
        if isinstance(value, pa.Array | range) or index in (POSITION, COUNTER, TIME):
            return batch.array(index)
        return self._repeated(name, value, batch.count)

    def _repeated(self, name: str, value: str, count: int) -> Any:
        """Mostly the same as the last time: then it is there already."""
        known, array = self._repeats.get(name, (None, None))
        if known != value or len(array) < count:
            array = pa.repeat(pa.scalar(value), count)
            self._repeats[name] = value, array
        return array.slice(0, count)
