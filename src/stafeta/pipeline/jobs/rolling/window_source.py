"""A stream of topics as parts of windows: what the rollup reads.

1. A task sums up what it reads, some messages at a time, and its rows are parts of windows, packed: readings stay in
   Arrow's batches from the broker to the sum. Made into rows of Spark's, they would take several times as long.
2. What jobs write is not read.
3. All tasks of a micro-batch have the same time of the day, which goes with the parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from stafeta.errors import StafetaError
from stafeta.pipeline.connector.errors import each_plain, plain_errors
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Task
from stafeta.pipeline.connector.spark_schema import arrow_schema, schema_of
from stafeta.pipeline.connector.stream import FailedStream, Offsets, TopicStream, time_of_day
from stafeta.pipeline.job import is_own_topic
from stafeta.pipeline.jobs.rolling.windows import Readings, summed_up

NAME: Final = "stafeta-windows"
SCHEMA: Final = "now bigint, parts binary"
SIZES: Final = "sizes"  # options of its own: sizes of windows in microseconds, with commas between,
DELAY: Final = "delay"  # and how far a time may be ahead
_OWN: Final = (SIZES, DELAY)
_READ: Final = ("topic", "offset", "timestamp", "number")
_ROWS: Final = 250_000  # messages that are summed up at a time
_TYPES: Final[dict[str, pa.DataType]] = {"now": pa.int64(), "parts": pa.binary()}  # as SCHEMA has them


class WindowSource(DataSource):
    """The options are those of `format("stafeta")`, and those above."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    @plain_errors
    def streamReader(self, schema: StructType) -> "WindowStream | FailedStream":  # noqa: N802 - as Spark has it
        options = {name: value for name, value in self.options.items() if name.lower() not in _OWN}
        sizes = tuple(map(int, str(self.options.get(SIZES)).split(",")))
        try:
            return WindowStream(
                ReadOptions.of(options, streaming=True), sizes, int(str(self.options.get(DELAY)))
            )
        except StafetaError as error:
            return FailedStream(error)


@dataclass
class WindowTask(Task):
    now: int


class WindowStream(TopicStream):
    def __init__(self, options: ReadOptions, sizes: Sequence[int], delay: int) -> None:
        super().__init__(options, schema_of(_READ, decode=False))
        self._sizes = sizes
        self._delay = delay

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        now = time_of_day()
        wanted = {name: offset for name, offset in end.items() if not is_own_topic(name)}
        return [
            WindowTask(one.ranges, now) for one in super().partitions(start, wanted) if isinstance(one, Task)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, WindowTask):
            return iter(())
        return each_plain(self._summed_up(partition))

    def _summed_up(self, task: WindowTask) -> "Iterator[pa.RecordBatch]":
        from stafeta.pipeline.connector.reading import batches

        for readings in _portions(batches(self._options, arrow_schema(self._schema), task)):
            parts = summed_up(readings, self._sizes, task.now + self._delay)
            columns: list[Any] = [pa.array([task.now]), pa.array([parts.pack()], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(_TYPES))


def _portions(batches: "Iterator[pa.RecordBatch]") -> Iterator[Readings]:
    """The messages, so many at a time, or what is left."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS:
            yield readings_of(waiting)
            waiting, rows = [], 0
    if waiting:
        yield readings_of(waiting)


def readings_of(batches: "Sequence[pa.RecordBatch]") -> Readings:
    """Batches of `_READ`, each of one topic, those of a topic one after the other, in the order of their offsets."""
    topics: list[str] = []
    codes = []
    for batch in batches:
        topic = batch.column("topic")[0].as_py()
        if not topics or topics[-1] != topic:
            topics.append(topic)
        codes.append(np.full(batch.num_rows, len(topics) - 1, np.int64))
    numbers: list[Any] = [batch.column("number") for batch in batches]
    return Readings(
        topics,
        np.concatenate(codes),
        np.concatenate([batch.column("offset").to_numpy() for batch in batches]),
        np.concatenate([batch.column("timestamp").cast(pa.int64()).to_numpy() for batch in batches]),
        np.concatenate([one.to_numpy(zero_copy_only=False) for one in numbers]),
        np.concatenate([one.is_valid().to_numpy(zero_copy_only=False) for one in numbers]),
    )
