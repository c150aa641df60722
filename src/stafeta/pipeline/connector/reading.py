"""What a task does to read: it goes through its ranges, and counts what it gets.

1. Batches are read on the task's own thread, one after the other: Spark takes them as fast as it can, and a thread that
   reads ahead would cost more than it gains.
2. When a stream breaks the next one goes on after the last row. A broker that does not answer is waited for.
3. What the task knows is not sent: topic and offset. What repeats is sent once for a batch.
4. Several ranges are asked for together: opening a stream takes some milliseconds, and topics may have a few messages
   each.
5. Where the broker's mark of all that is read is asked for, it goes with each request: what a task reads is of one log.
"""

import gc
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from stafeta.clients.flight.channel import LATE, TROUBLE, Channel, Pauses, may_pass, spawn, translated
from stafeta.columns import Repeats, counting
from stafeta.errors import Disconnected, Lagging, NoSuchOffset, NoSuchTopic, StafetaError
from stafeta.pipeline.connector.decoding import decoded
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.planning import Range, Task, lost
from stafeta.pipeline.connector.pushdown import Wanted
from stafeta.pipeline.connector.spark_schema import STORED, needed
from stafeta.pipeline.lake.marks import latest

_compute: Any = pc  # its types do not know all of it
_KNOWN: Final = frozenset({"topic", "offset"})
_TOGETHER: Final = 500  # ranges; a ticket of the broker's has room for some thousand


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
        for first in range(0, len(task.ranges), _TOGETHER):
            ranges = task.ranges[first : first + _TOGETHER]
            counts = dict.fromkeys(ranges, 0)
            for one, offset, batch in _Stream(channel, ranges, shape.asked, options.batch_rows, read_mark):
                made = shape.made(batch, one.topic, offset)
                counts[one] += batch.num_rows
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

    def made(self, batch: pa.RecordBatch, topic: str, offset: int) -> pa.RecordBatch:
        columns: dict[str, Any] = {}
        for name in self._names:
            if name == "topic":
                columns[name] = self._repeats.array(name, topic, batch.num_rows)
            elif name == "offset":
                columns[name] = counting(offset, offset + batch.num_rows)
            else:
                columns[name] = self._plain(name, batch.column(name))
        if self._wanted.columns:
            rows = self._wanted.rows(pa.RecordBatch.from_pydict(columns))
            columns = {name: rows.column(name) for name in self._names}
        arrays = [
            columns[name] if name in STORED else decoded(name, columns["kind"], columns["payload"])
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _plain(self, name: str, column: Any) -> Any:
        if not isinstance(column, pa.RunEndEncodedArray):
            return column
        if len(column.run_ends) == 1 and not column.offset:
            return self._repeats.array(name, column.values[0].as_py(), len(column))
        return _compute.run_end_decode(column)


class _Stream:
    """The batches of ranges, over as many `do_get` streams as it takes: each with its range, and its first offset. They
    end where the messages are gone."""

    def __init__(
        self,
        channel: Channel,
        ranges: Sequence[Range],
        columns: list[str],
        batch_rows: int | None,
        read_mark: ReadMark | None,
    ) -> None:
        self._channel = channel
        self._read_mark = read_mark
        self._left = deque((one, one.start) for one in ranges)  # and where each goes on
        self._asked: dict[str, object] = {"columns": columns, "runs": True}
        if batch_rows is not None:
            self._asked["batch_rows"] = batch_rows

    def __iter__(self) -> Iterator[tuple[Range, int, pa.RecordBatch]]:
        pauses = Pauses()
        progress = time.monotonic()
        while self._left:
            try:
                for topic, offset, batch in self._one():
                    one = self._range_of(topic, offset)
                    self._left[0] = one, offset + batch.num_rows
                    if offset + batch.num_rows >= one.stop:
                        self._left.popleft()
                    pauses.reset()
                    yield one, offset, batch
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

    def _range_of(self, topic: str | None, offset: int) -> Range:
        """The range that a batch is of. Those before it have nothing more."""
        while topic is not None and not (self._left[0][0].topic == topic and offset < self._left[0][0].stop):
            self._left.popleft()
        return self._left[0][0]

    def _one(self) -> Iterator[tuple[str | None, int, pa.RecordBatch]]:
        """One stream, up to its end: batches with their topics (None: the only one) and first offsets."""
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
                    yield about.get("topic"), about["offset"], chunk.data
        except TROUBLE as error:
            raise translated(error) from None

    def _wanted(self) -> dict[str, object]:
        if len(self._left) == 1:
            one, start = self._left[0]
            return {"topic": one.topic, "from": start, "to": one.stop}
        return {"spans": [(one.topic, start, one.stop) for one, start in self._left]}

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
