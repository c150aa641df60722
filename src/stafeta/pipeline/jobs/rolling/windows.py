"""Windows of readings, of many topics and sizes, as columns.

1. What is known of a window can be merged: readings are summed up where they are, and parts of a window from several
   tasks and batches become one.
2. A row of size 0 is a topic's clock: its start is the newest time that the topic has had, `NEVER` where nothing is
   known of it, and its count is that of the readings whose times are ahead.
3. A row with a size below 0 is a window that was closed before the time of the day was set back, to a time before its
   end: what comes for it is late.
4. Sizes and times are in microseconds since 1970; m2 is the sum of the squares of the distances from the mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stafeta.pipeline.jobs.batches.readings import Integers, Numbers, Readings
from stafeta.pipeline.jobs.rolling.sketches import Sketches

NEVER: Final = -(1 << 62)
_INTEGER, _NUMBER = np.dtype(np.int64), np.dtype(np.float64)
_COLUMNS: Final = {
    "size": _INTEGER,
    "start": _INTEGER,
    "count": _INTEGER,
    "mean": _NUMBER,
    "m2": _NUMBER,
    "min": _NUMBER,
    "max": _NUMBER,
    "first_time": _INTEGER,
    "first_offset": _INTEGER,
    "first": _NUMBER,
    "last_time": _INTEGER,
    "last_offset": _INTEGER,
    "last": _NUMBER,
}
_LISTS: Final[dict[str, Any]] = {"numbers": pa.float64(), "levels": pa.int8()}
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        *((name, pa.from_numpy_dtype(dtype)) for name, dtype in _COLUMNS.items()),
        *((name, pa.large_list(type_)) for name, type_ in _LISTS.items()),
    ]
)
_compute: Any = pc  # its types do not know all of it


@dataclass(frozen=True)
class Windows:
    topics: Any
    """An Arrow array of their names."""
    columns: dict[str, NDArray[Any]]
    sketches: Sketches

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.topics)

    @classmethod
    def empty(cls) -> "Windows":
        columns = {name: np.empty(0, dtype) for name, dtype in _COLUMNS.items()}
        return cls(pa.array([], pa.string()), columns, Sketches.empty())

    @classmethod
    def clocks(cls, topics: Any, times: Integers, ahead: Integers) -> "Windows":
        return cls._plain(topics, start=times, count=ahead)

    @classmethod
    def closed_before(cls, topics: Any, sizes: Integers, starts: Integers) -> "Windows":
        return cls._plain(topics, size=-sizes, start=starts)

    @classmethod
    def _plain(cls, topics: Any, **known: Integers) -> "Windows":
        """Rows without readings."""
        columns = {name: np.zeros(len(topics), dtype) for name, dtype in _COLUMNS.items()}
        return cls(topics, columns | known, Sketches.empty(len(topics)))

    @classmethod
    def joined(cls, parts: "Sequence[Windows]") -> "Windows":
        """The rows of all of them."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        return cls(
            pa.concat_arrays([part.topics for part in parts]),
            {name: np.concatenate([part[name] for part in parts]) for name in _COLUMNS},
            Sketches.joined([part.sketches for part in parts]),
        )

    def take(self, places: Integers) -> "Windows":
        """The rows at these places."""
        columns = {name: column[places] for name, column in self.columns.items()}
        return Windows(self.topics.take(pa.array(places)), columns, self.sketches.take(places))

    def where(self, mask: NDArray[np.bool_]) -> "Windows":
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def merged(self, codes: Integers, places: Integers) -> "tuple[Windows, Integers]":
        """Of the rows at these places each window once, in the order of their codes, sizes and starts; and their
        codes."""
        keys = [column[places] for column in (self["start"], self["size"], codes)]
        order = np.lexsort(keys)
        new = np.ones(len(order), bool)
        new[1:] = np.logical_or.reduce([key[order[1:]] != key[order[:-1]] for key in keys])
        firsts = np.flatnonzero(new)
        rows, codes = self.take(places[order]), codes[places[order]]
        return (rows if len(firsts) == len(rows) else rows._merged_at(firsts)), codes[firsts]

    def _merged_at(self, firsts: Integers) -> "Windows":
        """Neighbours made one, each from one of these places on."""
        sizes = np.diff(firsts, append=len(self))
        of = {name: column[firsts] for name, column in self.columns.items()}
        of["count"] = np.add.reduceat(self["count"], firsts)
        of["mean"], of["m2"] = _moments(self["count"], self["mean"], self["m2"], firsts, sizes)
        of["min"] = np.fmin.reduceat(self["min"], firsts)
        of["max"] = np.maximum.reduceat(self["max"], firsts)  # NaN is above all numbers, as Spark has it
        group = np.repeat(np.arange(len(firsts)), sizes)
        for edge, place in (("first", firsts), ("last", firsts + sizes - 1)):
            order = np.lexsort((self[f"{edge}_offset"], self[f"{edge}_time"], group))[place]
            of |= {name: self[name][order] for name in (edge, f"{edge}_time", f"{edge}_offset")}
        lots = lots_of(of["size"], of["start"], of["count"])
        return Windows(self.topics.take(pa.array(firsts)), of, self.sketches.merged(sizes, lots))

    def to_arrow(self) -> pa.RecordBatch:
        ends = pa.array(np.concatenate([[0], np.cumsum(self.sketches.counts)]), pa.int64())
        lists = {
            name: pa.LargeListArray.from_arrays(ends, pa.array(getattr(self.sketches, name)))
            for name in _LISTS
        }
        plain = {name: pa.array(column) for name, column in self.columns.items()}
        return pa.RecordBatch.from_pydict({"topic": self.topics} | plain | lists, SCHEMA)

    @classmethod
    def of_arrow(cls, batch: pa.RecordBatch) -> "Windows":
        numbers: Any
        levels: Any
        numbers, levels = (batch.column(name) for name in _LISTS)
        sketches = Sketches(
            numbers.flatten().to_numpy(),
            levels.flatten().to_numpy(),
            np.diff(numbers.offsets.to_numpy()),
        )
        columns = {name: batch.column(name).to_numpy() for name in _COLUMNS}
        return cls(batch.column("topic"), columns, sketches)

    def pack(self) -> bytes:
        """The rows as bytes, which `unpack` reads."""
        return self.pack_all([self])

    @classmethod
    def unpack(cls, data: bytes) -> "Windows":
        (one,) = cls.unpack_all(data)
        return one

    @staticmethod
    def pack_all(several: "Iterable[Windows]") -> bytes:
        """The same for several, which stay apart."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            for one in several:
                writer.write_batch(one.to_arrow())
        return sink.getvalue().to_pybytes()

    @classmethod
    def unpack_all(cls, data: bytes) -> "list[Windows]":
        with pa.ipc.open_stream(data) as reader:
            return [cls.of_arrow(batch) for batch in reader]


def encoded(topics: Any) -> tuple[Integers, Any]:
    """The names, each once, in the order in which they come first; and the place of each topic's among them."""
    made = _compute.dictionary_encode(topics)
    return made.indices.to_numpy().astype(np.int64), made.dictionary


def lots_of(sizes: Integers, starts: Integers, counts: Integers) -> Integers:
    """What lots are drawn by for the sketches of windows."""
    return starts * 31 + sizes * 7 + counts * 1_000_003


def _moments(
    counts: Integers, means: Numbers, m2: Numbers, firsts: Integers, sizes: Integers
) -> tuple[Numbers, Numbers]:
    """Means and m2 of what is put together. Like this, and not from sums of squares, the digits of large numbers that
    differ little are not lost."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(counts, firsts)
        mean = np.add.reduceat(counts * means, firsts) / total
        apart = means - np.repeat(mean, sizes)
        nearer = mean + np.add.reduceat(counts * apart, firsts) / total
        mean = np.where(np.isfinite(nearer), nearer, mean)
        apart = means - np.repeat(mean, sizes)
        return mean, np.add.reduceat(m2 + counts * apart * apart, firsts)


def summed_up(readings: Readings, sizes: Iterable[int], latest: int) -> Windows:
    """Windows of these sizes, and the clocks of their topics. A message without a number counts for the clock alone,
    one after `latest` not for the clock."""
    names = pa.array(readings.topics, pa.string())
    ahead = readings.times > latest
    times = np.full(len(names), NEVER, np.int64)
    np.maximum.at(times, readings.codes[~ahead], readings.times[~ahead])
    seen = np.bincount(readings.codes, minlength=len(names)) > 0
    counts = np.bincount(readings.codes[ahead & readings.is_number], minlength=len(names))
    parts = [Windows.clocks(names, times, counts.astype(np.int64)).where(seen)]
    codes, offsets, moments, numbers = _in_order(readings)
    if len(codes):
        parts += [_windows(names, codes, offsets, moments, numbers, size) for size in sizes]
    return Windows.joined(parts)


def _in_order(readings: Readings) -> tuple[Integers, Integers, Integers, Numbers]:
    """Numbers by topic, time and offset."""
    columns = (readings.codes, readings.offsets, readings.times, readings.numbers)
    if not readings.is_number.all():
        columns = tuple(column[readings.is_number] for column in columns)  # type: ignore[assignment]
    codes, offsets, times, _ = columns
    if ((codes[1:] == codes[:-1]) & (times[1:] < times[:-1])).any():
        order = np.lexsort((offsets, times, codes))
        columns = tuple(column[order] for column in columns)  # type: ignore[assignment]
    return columns


def _windows(
    names: Any, codes: Integers, offsets: Integers, times: Integers, numbers: Numbers, size: int
) -> Windows:
    starts = times // size * size
    new = np.ones(len(codes), bool)
    new[1:] = (codes[1:] != codes[:-1]) | (starts[1:] != starts[:-1])
    firsts = np.flatnonzero(new)
    counts = np.diff(firsts, append=len(codes))
    lasts = firsts + counts - 1
    ones = np.ones(len(numbers), np.int64)
    mean, m2 = _moments(ones, numbers, np.zeros(len(numbers)), firsts, counts)
    columns: dict[str, NDArray[Any]] = {
        "size": np.full(len(firsts), size, np.int64),
        "start": starts[firsts],
        "count": counts,
        "mean": mean,
        "m2": m2,
        "min": np.fmin.reduceat(numbers, firsts),
        "max": np.maximum.reduceat(numbers, firsts),
        "first_time": times[firsts],
        "first_offset": offsets[firsts],
        "first": numbers[firsts],
        "last_time": times[lasts],
        "last_offset": offsets[lasts],
        "last": numbers[lasts],
    }
    lots = lots_of(columns["size"], columns["start"], counts)
    return Windows(names.take(pa.array(codes[firsts])), columns, Sketches.of(numbers, counts, lots))
