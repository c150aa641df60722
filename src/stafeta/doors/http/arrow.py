"""Messages as an Arrow stream, out and in, with the columns of the Flight door."""

import asyncio
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from struct import error as struct_error
from typing import Final, cast

import pyarrow as pa

from stafeta.broker import Verbs
from stafeta.columns import ColumnBatch
from stafeta.doors.flight.decode_batches import check_schema, take
from stafeta.doors.flight.encode_batches import BatchEncoder
from stafeta.doors.http import arrow_bounds
from stafeta.doors.http.incoming import STAGED
from stafeta.errors import InvalidMessage, LimitReached
from stafeta.message import COLUMNS, KIND, TIME, Batch

COLUMNS_HERE: Final = (*COLUMNS, "position")
ROWS: Final = 10_000  # of a batch


def stream(batches: Sequence[Batch]) -> bytes:
    encoder = BatchEncoder(COLUMNS_HERE, ROWS, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, encoder.schema) as writer:
        for one in encoder.batches(batches) if batches else ():
            assert isinstance(one, pa.RecordBatch)
            writer.write_batch(one)
    return sink.getvalue().to_pybytes()


class Columns:
    """The messages of a stream, which the broker takes in portions: as `incoming.Rows`, but they may have times."""

    def __init__(self, batches: list[ColumnBatch]) -> None:
        self._batches = batches
        self.count = sum(batch.count for batch in batches)
        self.size = sum(batch.size for batch in batches)

    def check(self, verbs: Verbs) -> None:
        for batch in self._batches:
            verbs.check_longest(batch)

    def publishing(
        self, verbs: Verbs, name: str, source: str, *, keep_last: bool
    ) -> Iterator[Callable[[], tuple[int, int]]]:
        def publish(some: ColumnBatch) -> tuple[int, int]:
            first = verbs.append(name, some, source)
            assert first is not None, "it is where nobody numbers them"
            if keep_last:
                verbs.make_topic(name, keep_last=True)
            return first, first + some.count - 1

        return (partial(publish, some) for some in self._portions())

    def staging(
        self, verbs: Verbs, name: str, source: str, producer: str, part: str
    ) -> Iterator[Callable[[], asyncio.Future[None]]]:
        for some in self._portions():
            placed = some.placed(0, 0, 0, producer, source, None)
            yield partial(verbs.stage_batch, producer, 0, part, name, placed)

    def _portions(self) -> Iterator[ColumnBatch]:
        for batch in self._batches:
            yield from cast("list[ColumnBatch]", batch.parts(STAGED))

    def digest(self) -> str:
        """As that of rows, with the times where the messages bring them."""
        found = sha256()
        for batch in self._batches:
            times = [b""] * batch.count
            if batch.constant(TIME) is None:
                times = [b" %d" % cast("int", time) for time in batch.column(TIME)]
            for time, kind, payload in zip(times, batch.column(KIND), batch.payloads, strict=True):
                found.update(b"%d %d%b\n" % (cast("int", kind), len(payload), time))
                found.update(payload)
        return found.hexdigest()[:32]


def taken(body: bytes, topic: str, now: int, most: int) -> Columns:
    """The messages of a stream, checked, of at most so many bytes together. It takes its time: not for the loop."""
    try:
        arrow_bounds.check(body, most)
        # A file, of which each batch gets its own copy: else one that stays in memory would keep the whole body.
        with pa.ipc.open_stream(io.BytesIO(body)) as reader:
            check_schema(reader.schema)
            found = [take(data, topic, now, most) for data in reader if data.num_rows]
    except LimitReached:  # with its dictionary or its views spelt out
        raise arrow_bounds.too_large(most) from None
    except (pa.ArrowException, OSError, ValueError, OverflowError, struct_error) as error:
        sentence = (str(error).splitlines() or [""])[0][:300].rstrip(".")
        raise InvalidMessage(f"The body is not an Arrow stream that can be read: {sentence}.") from None
    columns = Columns(found)
    if columns.size > most:
        raise arrow_bounds.too_large(most)
    if not columns.count:
        raise InvalidMessage("There is no message in the body.")
    return columns
