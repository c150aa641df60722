"""What a task does to write: it puts its rows aside, some megabytes at a time."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from stafeta.clients.flight.producer import Transaction
from stafeta.pipeline.connector.options import WriteOptions
from stafeta.pipeline.connector.reading import spare_the_collector
from stafeta.pipeline.connector.repeats import Label

PORTION: Final = 4 << 20


def stage(
    transaction: Transaction,
    options: WriteOptions,
    part: str,
    rows: Iterator[pa.RecordBatch],
    label: Label | None = None,
) -> tuple[int, Label | None]:
    """Returns how many rows were put aside, and the label with them, where one is wanted."""
    spare_the_collector()
    count = 0
    for portion in _portions(rows):
        batch = _message(portion, options)
        count += transaction.write(options.topic, batch, part, options.kind)
        label = label and label.with_rows(batch)
    return count, label


def labelled(label: Label, options: WriteOptions, rows: Iterator[pa.RecordBatch]) -> Label:
    """The same for rows that are not put aside."""
    for batch in rows:
        label = label.with_rows(_message(batch, options))
    return label


def _portions(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in larger batches: each costs the broker a commit."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        waiting.append(batch)
        size += batch.nbytes
        if size >= PORTION:
            yield _joined(waiting)
            waiting, size = [], 0
    if size:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    joined: Any = pa
    batch: pa.RecordBatch = joined.concat_batches(batches)
    return batch


def _message(batch: pa.RecordBatch, options: WriteOptions) -> pa.RecordBatch:
    """The columns as the broker knows them, those that the options give for all rows left out."""
    given = {name for name, value in (("topic", options.topic), ("kind", options.kind)) if value is not None}
    names = [name for name in batch.schema.names if name not in given]
    return batch.select(names).rename_columns(["payload" if name == "value" else name for name in names])
