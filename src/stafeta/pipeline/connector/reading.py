"""What a task does to read: it goes through its ranges, and counts what it gets.

1. Batches are read on the task's own thread, one after the other: Spark takes them as fast as it can, and a thread that
   reads ahead would cost more than it gains.
2. When a stream breaks the next one goes on after the last row. A broker that does not answer is waited for.
3. What the task knows is not sent: topic and offset. What repeats is sent once for a batch.
4. Several ranges are asked for together: opening a stream takes some milliseconds, and topics may have a few messages
   each. Who does not mind the order gets them in that of the log, so that the broker reads it once.
5. Where the broker's mark of all that is read is asked for, it goes with each request: what a task reads is of one log.
"""

import gc
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from stafeta.clients.flight.channel import LATE, TROUBLE, Channel, Pauses, may_pass, spawn, translated
from stafeta.columns import Repeats, counting
from stafeta.errors import Disconnected, Lagging, NoSuchOffset, NoSuchTopic, StafetaError
from stafeta.pipeline.connector.decoding import decoded
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import TOGETHER, Range, Task, lost
from stafeta.pipeline.connector.pushdown import Wanted
from stafeta.pipeline.connector.spark_schema import STORED, needed
from stafeta.pipeline.lake.marks import latest

_compute: Any = pc  # its types do not know all of it
_KNOWN: Final = frozenset({"topic", "offset"})


class ReadMark:
    """The broker's mark of all that a task has read."""

    def __init__(self) -> None:
        self.latest = ""

    def add(self, mark: str) -> None:
        self.latest = latest((self.latest, mark))


def batches(
    options: ReadOptions,
    schema: pa.Schema,
    task: Task,
    wanted: Wanted | None = None,
    read_mark: ReadMark | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the columns of the schema."""
    spare_the_collector()
    wanted = wanted or Wanted()
    shape = _Shape(schema, wanted)
    channel = options.address.channel()
    try:
        for first in range(0, len(task.ranges), TOGETHER):
            ranges = task.ranges[first : first + TOGETHER]
            counts = dict.fromkeys(ranges, 0)
            stream = _Stream(
                channel, ranges, shape.asked, options.batch_rows, read_mark, together=task.together
            )
            for runs, batch in stream:
                for one, _, rows in runs:
                    counts[one] += rows
                made = shape.made(batch, runs)
                if made.num_rows:
                    yield made
            for one, count in counts.items():
                if count < one.rows and options.fail_on_data_loss:
                    raise lost(one, one.rows - count)
    finally:
        channel.close()


@cache
def spare_the_collector() -> None:
    """After each task, a Python worker of Spark's collects garbage, and takes some 40 ms to look at all modules. What
    is there now is here to stay, and is not looked at again. (To ask whether that was done takes 10 ms.)"""
    gc.freeze()


class _Shape:
    """Turns batches of the broker's into those that Spark expects."""

    def __init__(self, schema: pa.Schema, wanted: Wanted) -> None:
        self._schema = schema
        self._wanted = wanted
        names = [*dict.fromkeys((*needed(schema.names), *sorted(wanted.columns)))]
        self._names = names
        self.asked = [name for name in names if name not in _KNOWN] or ["kind"]  # of which least is sent
        self._repeats = Repeats()

    def made(self, batch: pa.RecordBatch, runs: "list[Run]") -> pa.RecordBatch:
        columns: dict[str, Any] = {}
        for name in self._names:
            if name == "topic":
                columns[name] = self._topics(runs)
            elif name == "offset":
                columns[name] = _offsets(runs)
            else:
                columns[name] = self._plain(name, batch.column(name))
        if self._wanted.columns:
            rows = self._wanted.rows(pa.RecordBatch.from_pydict(columns))
            columns = {name: rows.column(name) for name in self._names}
        arrays = [
            columns[name] if name in STORED else decoded(name, columns["kind"], columns.get("payload"))
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _topics(self, runs: "list[Run]") -> Any:
        if len(runs) == 1:
            return self._repeats.array("topic", runs[0].range.topic, runs[0].rows)
        return _spread(runs, pa.array([one.range.topic for one in runs]))

    def _plain(self, name: str, column: Any) -> Any:
        if not isinstance(column, pa.RunEndEncodedArray):
            return column
        if len(column.run_ends) == 1 and not column.offset:
            return self._repeats.array(name, column.values[0].as_py(), len(column))
        return _compute.run_end_decode(column)


def _offsets(runs: "list[Run]") -> Any:
    if len(runs) == 1:
        return counting(runs[0].offset, runs[0].offset + runs[0].rows)
    starts = [0, *accumulate([one.rows for one in runs])]
    shifts = [one.offset - start for one, start in zip(runs, starts, strict=False)]
    return _compute.add(_spread(runs, pa.array(shifts, pa.int64())), counting(0, starts[-1]))


def _spread(runs: "list[Run]", values: Any) -> Any:
    """A value for each run, for each of its rows."""
    ends: Any = pa.array(accumulate([one.rows for one in runs]), pa.int32())
    return _compute.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


class Run(NamedTuple):
    """Rows of a batch, with offsets that follow each other."""

    range: Range
    offset: int
    rows: int


class _Stream:
    """The batches of ranges, over as many `do_get` streams as it takes: each with its runs of rows. They end where the
    messages are gone."""

    def __init__(
        self,
        channel: Channel,
        ranges: Sequence[Range],
        columns: list[str],
        batch_rows: int | None,
        read_mark: ReadMark | None,
        *,
        together: bool,
    ) -> None:
        self._channel = channel
        self._read_mark = read_mark
        self._left = {one: one.start for one in ranges}  # and where each goes on
        self._of_topic: dict[str, list[Range]] = {}
        for one in ranges:
            self._of_topic.setdefault(one.topic, []).append(one)
        self._together = together
        self._asked: dict[str, object] = {"columns": columns, "runs": True}
        if batch_rows is not None:
            self._asked["batch_rows"] = batch_rows

    def __iter__(self) -> Iterator[tuple[list[Run], pa.RecordBatch]]:
        pauses = Pauses()
        progress = time.monotonic()
        while self._left:
            try:
                for found, batch in self._one():
                    runs = [Run(self._range_of(topic, offset), offset, rows) for topic, offset, rows in found]
                    for one, offset, rows in runs:
                        self._left[one] = offset + rows
                        if offset + rows >= one.stop:
                            del self._left[one]
                    pauses.reset()
                    yield runs, batch
                    progress = time.monotonic()
                return
            except Lagging:
                continue  # with what is still there
            except (NoSuchTopic, NoSuchOffset):
                return  # which whoever counts finds out
            except StafetaError as error:
                if not may_pass(error):
                    raise
                left = progress + self._channel.timeout - time.monotonic()
                if left <= 0:
                    raise self._channel.no_reply(error) from None
                pause = min(pauses.longer(), left)
                self._channel.log_trouble(error, pause)
                time.sleep(pause)

    def _range_of(self, topic: str, offset: int) -> Range:
        ranges = self._of_topic[topic]
        return (
            ranges[0] if len(ranges) == 1 else next(one for one in ranges if one.start <= offset < one.stop)
        )

    def _one(self) -> Iterator[tuple[list[tuple[str, int, int]], pa.RecordBatch]]:
        """One stream, up to its end: batches with their runs, each a topic, its first offset, and so many rows."""
        try:
            asked = {**self._asked, **self._wanted()}
            if self._read_mark is not None:
                asked["mark"] = self._read_mark.latest
            ticket = flight.Ticket(json.dumps(asked).encode())
            with (
                self._channel.open() as client,
                _Watch(self._opened(client, ticket), self._channel.timeout) as reader,
            ):
                while (chunk := reader.next()) is not None:
                    about = json.loads(chunk.app_metadata.to_pybytes())
                    if self._read_mark is not None:
                        self._read_mark.add(about["mark"])
                    topic = about.get("topic", asked.get("topic"))
                    yield about.get("runs") or [(topic, about["offset"], chunk.data.num_rows)], chunk.data
        except TROUBLE as error:
            raise translated(error) from None

    def _wanted(self) -> dict[str, object]:
        if len(self._left) == 1:
            ((one, start),) = self._left.items()
            return {"topic": one.topic, "from": start, "to": one.stop}
        spans = [(one.topic, start, one.stop) for one, start in self._left.items()]
        return {"spans": spans, **({"together": True} if self._together else {})}

    def _opened(self, client: flight.FlightClient, ticket: flight.Ticket) -> flight.FlightStreamReader:
        """A stream that has begun; there is no way to make that give up either."""
        opening = spawn(client.do_get, ticket, self._channel.options())
        try:
            return opening.result(self._channel.timeout)
        except TimeoutError:
            raise Disconnected(LATE) from None


class _Watch:
    """A reader that gives up where nothing comes for as long as the timeout says: a call never does."""

    def __init__(self, reader: flight.FlightStreamReader, timeout: float) -> None:
        self._reader = reader
        self._timeout = timeout
        self._waits_since: float | None = None
        self._ended = threading.Event()

    def __enter__(self) -> "_Watch":
        threading.Thread(target=self._watch, name="stafeta-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(*TROUBLE):
            self._reader.cancel()

    def next(self) -> Any | None:
        self._waits_since = time.monotonic()
        try:
            return self._reader.read_chunk()
        except StopIteration:
            return None
        finally:
            self._waits_since = None

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._timeout)):
            since = self._waits_since
            if since is not None and time.monotonic() > since + self._timeout:
                self._reader.cancel()
                return
