"""A stream of topics as what a job's tasks make of its readings: the base of the sources of rollup and alerts.

1. A task makes something of what it reads, some messages at a time, and its rows are that, packed: readings stay in
   Arrow's batches from the broker on. Made into rows of Spark's, they would take several times as long.
2. What jobs write is not read.
3. All tasks of a micro-batch have the same time of the day, which goes with what they make.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from stafeta.errors import StafetaError
from stafeta.pipeline.connector.errors import each_plain, plain_errors
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Task
from stafeta.pipeline.connector.spark_schema import arrow_schema, schema_of
from stafeta.pipeline.connector.stream import FailedStream, Offsets, TopicStream, between, time_of_day
from stafeta.pipeline.job import is_own_topic
from stafeta.pipeline.jobs.batches.readings import COLUMNS, Readings, readings_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from stafeta.pipeline.job import Context

SCHEMA: Final = "now bigint, parts binary"
_TYPES: Final[dict[str, pa.DataType]] = {"now": pa.int64(), "parts": pa.binary()}  # as SCHEMA has them
FEW: Final = 2_000
"""Messages that are read in less time than a job of Spark's takes to begin."""

_ROWS: Final = 250_000  # messages that are looked at together


class ReadingSource(DataSource):
    """The options are those of `format("stafeta")`, and `own`."""

    own: ClassVar[tuple[str, ...]]

    def stream(self, options: ReadOptions) -> "ReadingStream":
        """The stream, for the options that are not its own."""
        raise NotImplementedError

    def schema(self) -> str:
        return SCHEMA

    @plain_errors
    def streamReader(self, schema: StructType) -> "ReadingStream | FailedStream":  # noqa: N802 - as Spark has it
        options = {name: value for name, value in self.options.items() if name.lower() not in self.own}
        try:
            return self.stream(ReadOptions.of(options, streaming=True))
        except StafetaError as error:
            return FailedStream(error)


@dataclass
class TimedTask(Task):
    now: int


class ReadingStream(TopicStream):
    mixes_topics = True

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options, schema_of(COLUMNS, decode=False))

    def wants(self, topic: str) -> bool:
        """Whether a topic is read."""
        return not is_own_topic(topic)

    def packed(self, readings: Readings, now: int) -> bytes | None:
        """What becomes of readings, at this time of the day (microseconds); None where it is nothing."""
        raise NotImplementedError

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        now = time_of_day()
        wanted = {name: offset for name, offset in end.items() if " " in name or self.wants(name)}
        return [
            TimedTask(one.ranges, now, together=one.together)
            for one in super().partitions(start, wanted)
            if isinstance(one, Task)
        ]

    def few(self, start: Offsets, end: Offsets) -> TimedTask | None:
        """The task of a micro-batch, where it has so few messages that whoever wants them reads them himself."""
        ranges = tuple(one for one in between(start, end) if self.wants(one.topic))
        if sum(one.rows for one in ranges) > FEW:
            return None
        self._checkpoint.sync_plan()
        return TimedTask(ranges, time_of_day())

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        if not isinstance(partition, TimedTask):
            return iter(())
        return each_plain(self.made(partition))

    def made(self, task: TimedTask) -> "Iterator[RecordBatch]":
        """What becomes of the messages of a task: rows of `SCHEMA`."""
        from stafeta.pipeline.connector.reading import batches

        for readings in _portions(batches(self._options, arrow_schema(self._schema), task)):
            parts = self.packed(readings, task.now)
            if parts is not None:
                columns: list[Any] = [pa.array([task.now]), pa.array([parts], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(_TYPES))


def direct(context: "Context") -> ReadOptions:
    """The options of a stream that only reads what others have planned."""
    pipeline = context.config.pipeline
    options = {
        "broker": pipeline.broker,
        "subscribe": pipeline.subscribe,
        "checkpointLocation": context.checkpoint,
    }
    return ReadOptions.of(options, streaming=True)


def _portions(batches: "Iterator[RecordBatch]") -> Iterator[Readings]:
    """The messages, so many at a time, or what is left."""
    waiting: list[RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS:
            yield readings_of(waiting)
            waiting, rows = [], 0
    if waiting:
        yield readings_of(waiting)
