"""Writing to topics, each row once.

1. A task puts its rows aside in the broker, as a part of a transaction whose name no other attempt has. The driver
   names the parts of the attempts that count, and makes them visible together.
2. A micro-batch is the transaction (query id, batch id), a batch write one of its own, or the one that the options
   name. The broker commits a transaction once, so a batch that is replayed changes nothing, and is not even staged.
3. What the options name is looked at when it comes again: rows that are not the ones before are refused (`repeats`).
   The name of any other batch write is used once, and forgotten by the broker when nobody can ask for it any more.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stafeta.errors import AlreadyWritten, StafetaError
from stafeta.pipeline.connector.errors import plain_errors
from stafeta.pipeline.connector.options import Address, WriteOptions
from stafeta.pipeline.connector.repeats import QUERY, Label, check_repeat

if TYPE_CHECKING:
    import pyarrow as pa

PRODUCER = "spark/"
FORGET_AFTER: Final = (
    3600  # seconds: a commit is asked for again as long as the option timeout says, in general less
)


@dataclass
class Staged(WriterCommitMessage):
    """What a task has put aside."""

    producer: str
    counter: int
    part: str
    rows: int
    is_done: bool
    """The transaction was committed before."""
    label: Label | None = None
    """Of its rows, where the write has a name."""


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plain_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:  # type: ignore[override]  # as Spark has it
        context = TaskContext.get()
        query = context and context.getLocalProperty(QUERY)
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise StafetaError("Spark does not tell the task which query and micro-batch it writes.")
        return _stage(self._options, PRODUCER + query, int(batch), iterator, before=int(batch))

    @plain_errors
    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        _commit(self._options, messages)

    @plain_errors
    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        _abort(self._options, messages)


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        name, self._counter = options.transaction or (uuid4().hex, 0)
        # As with tables, a name counts for each topic by itself. No topic has the sign in it.
        target = f"#{options.topic}" if options.transaction and options.topic is not None else ""
        self._producer = PRODUCER + name + target

    @plain_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:  # type: ignore[override]  # as Spark has it
        label = Label.of_task() if self._options.transaction else None
        return _stage(self._options, self._producer, self._counter, iterator, label=label)

    @plain_errors
    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        if self._options.transaction:
            _commit_named(self._options, self._options.transaction[0], messages)
        else:
            _commit(self._options, messages, forget_after=_forget_after(self._options))

    @plain_errors
    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        _abort(self._options, messages)


def write_once(broker: str, name: str, number: int, rows: "pa.RecordBatch", before: int | None) -> None:
    """Writes rows, which have a column topic, as the micro-batch of a name, without Spark. One that is repeated has the
    same rows. `before` is the name's last one that had rows, where that is known."""
    put_aside(broker, name, number, rows, before)()


def put_aside(
    broker: str, name: str, number: int, rows: "pa.RecordBatch", before: int | None
) -> Callable[[], None]:
    """The same up to where the rows become visible: that is when what this returns is called. What earlier attempts
    have left is dropped: else each one of a job that fails again and again would leave a copy at the broker."""
    options = WriteOptions(Address(broker), None, None, (name, number))
    with _told_of_copies(name, number):
        staged = _stage(
            options,
            PRODUCER + name,
            number,
            iter([rows]),
            before=number if before is None else before,
            label=Label(),
            alone=True,
        )

    def commit() -> None:
        with _told_of_copies(name, number):
            _commit_named(options, name, [staged])

    return commit


@contextmanager
def _told_of_copies(name: str, number: int) -> Iterator[None]:
    try:
        yield
    except AlreadyWritten as error:
        raise AlreadyWritten(
            f"Topics have micro-batch {error.expected - 1} of {name}, which now writes {number}, with other rows: its "
            "checkpoint is older than its topics, or a copy of one that was gone on with. Put back the newest; or "
            "remove it, and the job begins anew with what comes.",
            error.expected,
        ) from None


def _stage(
    options: WriteOptions,
    producer: str,
    counter: int,
    rows: "Iterator[pa.RecordBatch]",
    *,
    before: int | None = None,
    label: Label | None = None,
    alone: bool = False,
) -> Staged:
    """`before` is the highest counter that the producer may have committed, unless it is this one. What is `alone` is
    all of the transaction: no other task writes to it."""
    from stafeta.pipeline.connector.staging import labelled, stage

    part = token_urlsafe(9)  # short, since the commit names all of them: there is room for 40,000
    with options.address.connect() as connection:
        last = connection.committed(producer)  # not to begin it: other tasks write to it too
        if before is not None and last is not None and last > before and last != counter:
            raise AlreadyWritten(
                f"The query has written its micro-batches up to {last} before, and now writes {counter}: its "
                "checkpoint is older than its topics. Start it with a new checkpoint.",
                last + 1,
            )
        is_done = last is not None and last >= counter
        if is_done:
            label = None if label is None else labelled(label, options, rows)
            return Staged(producer, counter, part, 0, is_done, label)
        if alone:
            connection.transaction(producer, counter).abort()
        count, label = stage(connection.transaction(producer, counter), options, part, rows, label)
    return Staged(producer, counter, part, count, is_done, label)


def _commit(
    options: WriteOptions, messages: "Sequence[WriterCommitMessage | None]", forget_after: int | None = None
) -> None:
    staged = [one for one in messages if isinstance(one, Staged)]
    parts = {one.part: one.rows for one in staged if one.rows}
    if parts and not any(one.is_done for one in staged):
        with options.address.connect() as connection:
            transaction = connection.transaction(staged[0].producer, staged[0].counter)
            transaction.commit(parts, forget_after=forget_after)


def _commit_named(options: WriteOptions, name: str, messages: "Sequence[WriterCommitMessage | None]") -> None:
    staged = [one for one in messages if isinstance(one, Staged)]
    label = Label.joined(one.label for one in staged if one.label is not None)
    if not label.rows:
        return  # nothing that could be lost, whoever had the version
    producer, counter = staged[0].producer, staged[0].counter
    parts = {one.part: one.rows for one in staged if one.rows}
    with options.address.connect() as connection:
        is_done = any(one.is_done for one in staged)
        if is_done or not connection.transaction(producer, counter).commit(parts, label=str(label)):
            check_repeat(connection, producer, counter, label, name)


def _forget_after(options: WriteOptions) -> int:
    """In seconds: longer than the driver may ask for its commit again, so that it gets the answer it missed."""
    return max(FORGET_AFTER, math.ceil(2 * options.address.timeout))


def _abort(options: WriteOptions, messages: "Sequence[WriterCommitMessage | None]") -> None:
    staged = [one for one in messages if isinstance(one, Staged)]
    if staged:
        with options.address.connect() as connection:
            connection.transaction(staged[0].producer, staged[0].counter).abort()
