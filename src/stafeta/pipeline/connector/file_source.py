"""A stream of topics as files: what the archive reads.

1. A task writes what it reads to Parquet files of the table, one for each day, and its rows tell of them: which file,
   which offsets are in it, and the broker's mark of the log that they are of. Messages stay in Arrow's batches from
   the broker to the file; made into rows of Spark's, they would take several times as long.
2. A file is sorted by topic and offset, since a task reads its topics one after the other, in order.
3. What is small waits for more, for a while: it stays with the broker.
4. A file that a killed attempt left behind is named by nobody, and nobody reads it. One that fails removes its own.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from stafeta.errors import StafetaError
from stafeta.pipeline.connector.errors import each_plain, plain_errors
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Task
from stafeta.pipeline.connector.spark_schema import arrow_schema, schema_of
from stafeta.pipeline.connector.stream import FailedStream, TopicStream
from stafeta.pipeline.lake.files import create, finished, remove, runs
from stafeta.pipeline.lake.tables import TABLES

NAME: Final = "stafeta-files"
SCHEMA: Final = "url string, topic string, start bigint, stop bigint, mark string"
TABLE: Final = "table"  # options of its own: the URL of the table,
EVERY: Final = "every"  # how many seconds messages may wait for others,
SIZE: Final = "size"  # and how many bytes of them
_OWN: Final = {TABLE: "", EVERY: "0", SIZE: "0"}
_ROWS: Final = 250_000  # that a file takes at a time
_DAY: Final = 86_400_000_000  # microseconds
_REPEATING: Final = ["topic", "producer", "source", "kind"]
_TYPES: Final[dict[str, pa.DataType]] = {  # as SCHEMA has them
    "url": pa.string(),
    "topic": pa.string(),
    "start": pa.int64(),
    "stop": pa.int64(),
    "mark": pa.string(),
}
_compute: Any = pc  # its types do not know all of it


class FileSource(DataSource):
    """The options are those of `format("stafeta")`, and those above."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    @plain_errors
    def streamReader(self, schema: StructType) -> "FileSourceStream | FailedStream":
        options = {name: value for name, value in self.options.items() if name.lower() not in _OWN}
        own = {name: self.options.get(name, default) for name, default in _OWN.items()}
        try:
            return FileSourceStream(
                ReadOptions.of(options, streaming=True), own[TABLE], float(own[EVERY]), int(own[SIZE])
            )
        except StafetaError as error:
            return FailedStream(error)


class FileSourceStream(TopicStream):
    def __init__(self, options: ReadOptions, table: str, every: float, size: int) -> None:
        super().__init__(options, schema_of(TABLES["messages"].names, decode=False))
        self._table = table
        self._every = every
        self._size = size

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, Task):
            return iter(())
        return each_plain(self._filed(partition))

    def _is_too_little(self, total: int) -> bool:
        if self._target is not None:  # what is there is read, and that is all
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        most = self._options.max_offsets
        small = total * self._weight < self._size and (most is None or total < most)
        if small and now < self._waiting_since + self._every:
            return True
        self._waiting_since = None
        return False

    def _filed(self, task: Task) -> "Iterator[pa.RecordBatch]":
        from stafeta.pipeline.connector.reading import ReadMark, batches

        files: dict[int, _File] = {}
        mark = ReadMark()
        try:
            for batch in batches(self._options, arrow_schema(self._schema), task, read_mark=mark):
                for day, rows in _by_day(batch):
                    if day not in files:
                        files[day] = _File(self._table, day)
                    files[day].add(rows)
            for file in files.values():
                yield file.finish(mark.latest)
        except Exception:  # what a full disk has left would make it fuller with each try
            for file in files.values():
                file.remove()
            raise


class _File:
    """A file that is being written."""

    def __init__(self, table: str, day: int) -> None:
        self._url = f"{table}/data/{date(1970, 1, 1) + timedelta(days=day)}/{uuid.uuid4().hex}.parquet"
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._runs: list[tuple[str, int, int]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._pending.append(rows)
        self._rows += rows.num_rows
        for topic, start, stop in runs(pa.table(rows.select(["topic", "offset"]))):
            if self._runs and self._runs[-1][0] == topic and self._runs[-1][2] == start:
                start = self._runs.pop()[1]
            self._runs.append((topic, start, stop))
        if self._rows >= _ROWS:
            self._write()

    def finish(self, mark: str = "") -> pa.RecordBatch:
        """Closes the file, and tells what is in it."""
        self._write()
        assert self._writer is not None
        self._writer.close()
        self._sink.close()
        url = finished(self._url, self._sink)
        rows = [
            {"url": url, "topic": topic, "start": start, "stop": stop, "mark": mark}
            for topic, start, stop in self._runs
        ]
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema(_TYPES))

    def remove(self) -> None:
        """Removes what was written, whether or not it is closed."""
        with suppress(OSError):
            remove([self._url, finished(self._url, self._sink)] if self._sink is not None else [])

    def _write(self) -> None:
        if not self._pending:
            return
        table: Any = pa.Table.from_batches(self._pending)
        if self._writer is None:
            self._sink = create(self._url, sealed=True)
            self._writer = pq.ParquetWriter(
                self._sink,
                pa.schema([field.with_nullable(True) for field in table.schema]),
                compression="zstd",
                compression_level=1,
                use_dictionary=_REPEATING,  # type: ignore[arg-type]  # its types know of True and False
                write_page_checksum=True,
            )
        self._writer.write_table(table.cast(self._writer.schema))
        self._pending, self._rows = [], 0


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day (since 1970, UTC)."""
    times = batch.column("timestamp").cast(pa.int64())
    edges = pc.min_max(times)
    first, last = (edges[name].as_py() // _DAY for name in ("min", "max"))
    if first == last:
        yield first, batch
        return
    for day in sorted({moment // _DAY for moment in _compute.unique(times).to_pylist()}):
        low, high = day * _DAY, (day + 1) * _DAY
        inside = _compute.and_(_compute.greater_equal(times, low), _compute.less(times, high))
        rows = batch.filter(inside)
        if rows.num_rows:
            yield day, rows
