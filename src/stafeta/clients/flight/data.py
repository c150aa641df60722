"""What programs publish, made into Arrow record batches.

1. Rows are str or bytes, of the kinds string and bytes unless a kind is named. A dictionary or a list becomes its JSON,
   an int or a float its decimal text.
2. Arrow data, and whatever offers it by the PyCapsule interface (a DataFrame or Series of pandas or polars), goes as it
   is: a table has the column payload, and if wanted kind, timestamp and topic; a single column is the payloads.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate
from math import isfinite
from reprlib import repr as shown
from typing import Any, Final, TypeAlias

import pyarrow as pa

from stafeta.errors import InvalidMessage

Data: TypeAlias = Any
"""Rows (an iterable of str, bytes, …), or Arrow data, or what offers it."""

PIECE: Final = 16 << 20  # bytes that go as one batch; larger ones are cut
FEW: Final = 64  # rows of a topic, on average, that are worth a batch of their own
TOGETHER: Final = 2_000  # rows that go together otherwise: the broker takes them in one turn
_INDEX: Final = re.compile(r"__index_level_\d+__")  # what pandas calls an index without a name
_CAPSULES: Final = ("__arrow_c_stream__", "__arrow_c_array__")


def is_arrow(data: object) -> bool:
    return any(hasattr(data, name) for name in _CAPSULES)


def batches(data: Data, kind: str | None = None) -> list[pa.RecordBatch]:
    """The record batches that carry the data."""
    if is_arrow(data):
        return list(of_arrow(data, kind))
    if isinstance(data, str | bytes | bytearray | memoryview | dict) or not isinstance(data, Iterable):
        raise InvalidMessage(
            f"{shown(data)} is a {type(data).__name__}; publish a list of messages, or Arrow data."
        )
    rows = list(data)
    try:
        return list(of_rows(rows, kind))
    except InvalidMessage as error:
        at, why = first_wrong(rows)
        raise InvalidMessage(
            f"Message {at + 1} of {len(rows)} is refused, and all with it: {why or error}"
        ) from None


def first_wrong(rows: Sequence[Any]) -> tuple[int, InvalidMessage | None]:
    """The place of the first row that cannot be a message, and why; how many there are, where there is none."""
    for at, row in enumerate(rows):
        try:
            one_batch([row])
        except InvalidMessage as error:
            return at, error
    return len(rows), None


def of_rows(rows: Sequence[Any], kind: str | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of messages that are Python objects."""
    if len(rows) > 1 and _size(rows) > PIECE:
        half = len(rows) // 2
        yield from of_rows(rows[:half], kind)
        yield from of_rows(rows[half:], kind)
    elif rows:
        yield from pieces(one_batch(rows, kind))


def one_batch(rows: Sequence[Any], kind: str | None = None) -> pa.RecordBatch:
    """One batch of messages that are Python objects."""
    try:
        try:
            payloads = column(rows)
        except TypeError:
            pairs = list(map(_pair, rows))
            payloads = column([payload for _, payload in pairs])
            if kind is None:
                kinds = column([kind for kind, _ in pairs])
                return pa.RecordBatch.from_arrays([payloads, kinds], ["payload", "kind"])
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"It has half a surrogate pair in it, which UTF-8 cannot carry: {error}."
        ) from None
    except OverflowError:
        raise InvalidMessage("It has more than 2 GB; that is too large.") from None
    if kind is None:
        return pa.RecordBatch.from_arrays([payloads], ["payload"])
    return pa.RecordBatch.from_arrays([payloads, _kinds(kind, len(rows))], ["payload", "kind"])


def column(rows: Sequence[Any]) -> Any:
    """An array of bytes, or of text. Raises `TypeError` where there is something else, or both.

    As quick as `pa.array`, which besides would import pandas where it is installed: 0.2 s and 40 MB for nothing."""
    type_: pa.DataType = pa.binary()
    try:
        data = b"".join(rows)
    except TypeError:
        text, type_ = "".join(rows), pa.string()
        data = text.encode()
        if len(data) > len(text):
            rows = [row.encode() for row in rows]
    ends = array("i", (0,))
    ends.extend(accumulate(map(len, rows)))
    if ends[-1] != len(data):
        raise TypeError("a view whose items are larger than a byte")
    return pa.Array.from_buffers(type_, len(rows), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def of_arrow(data: Any, kind: str | None = None) -> Iterator[pa.RecordBatch]:
    """Arrow data as record batches: nothing is copied, and no row becomes a Python object."""
    table = _table(data)
    if "payload" not in table.schema.names:
        raise InvalidMessage(
            f"The data has the columns {', '.join(table.schema.names) or '(none)'}; messages are in a column payload."
        )
    for batch in table.to_batches():
        if kind is not None and "kind" not in batch.schema.names:
            batch = batch.append_column("kind", _kinds(kind, batch.num_rows))
        yield from pieces(batch)


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic that the column topic names, topics and rows in the order in which they are there."""
    import pyarrow.compute as pc

    topics = topics_of(batch)
    names, codes = topics.dictionary.to_pylist(), topics.indices
    rest = batch.drop_columns(["topic"])
    if len(names) == 1:
        yield names[0], rest
        return
    # Sorted once, and then cut: a topic is not looked for in all rows.
    compute: Any = pc  # its types do not know all of it
    order = compute.sort_indices(codes)
    rest = rest.take(order)
    start = 0
    for name, end in zip(names, compute.run_end_encode(codes.take(order)).run_ends.to_pylist(), strict=True):
        yield name, rest.slice(start, end - start)
        start = end


def for_staging(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The same for a transaction: topics with few rows each go together, and the broker takes them apart."""
    if batch.num_rows >= FEW * len(topics_of(batch).dictionary):
        yield from by_topic(batch)
        return
    for start in range(0, batch.num_rows, TOGETHER):
        yield None, batch.slice(start, TOGETHER)


def topics_of(batch: pa.RecordBatch) -> Any:
    """The column topic, as places among its names in the order in which they are there."""
    import pyarrow.compute as pc

    if "topic" not in batch.schema.names:
        raise InvalidMessage(
            "Without a topic, the data needs a column topic that names one for each message."
        )
    column: Any = batch.column("topic")
    if column.null_count:
        raise InvalidMessage("The column topic has a null in it; every message needs a topic.")
    plain = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    if len(plain) and not isinstance(plain[0].as_py(), str):
        raise InvalidMessage(f"The column topic is of the type {column.type}; it must be text.")
    if pa.types.is_string_view(plain.type):
        plain = plain.cast(pa.string())
    encode: Any = pc.dictionary_encode
    return encode(plain)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, in pieces that are not too large to wait for."""
    if not batch.num_rows:
        return
    count = min(batch.num_rows, -(-batch.nbytes // PIECE))
    rows = -(-batch.num_rows // max(1, count))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows) if count > 1 else batch


def _kinds(kind: str, count: int) -> Any:
    codes = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(count))])
    return pa.DictionaryArray.from_arrays(codes, column([kind]))


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Array | pa.ChunkedArray):
        column: Any = data
        return pa.table({"payload": column})
    table: pa.Table = data if isinstance(data, pa.Table) else _imported(data)
    index = [name for name in table.schema.names if _INDEX.fullmatch(name)]
    return (table.drop_columns(index) if index else table).replace_schema_metadata(None)


def _imported(data: Any) -> pa.Table:
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowException, TypeError, ValueError):
        pass  # no table: perhaps one column
    try:
        column: Any = pa.chunked_array(data)
        return pa.table({"payload": column})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidMessage(f"The {type(data).__name__} cannot be read as Arrow data: {error}.") from None


def _size(rows: Sequence[Any]) -> int:
    """About how many bytes of payload."""
    try:
        return sum(map(len, rows))
    except TypeError:  # numbers are among them
        return sum(len(row) for row in rows if isinstance(row, str | bytes))


def _pair(row: Any) -> tuple[str, bytes]:
    """The kind and the payload of one message."""
    if isinstance(row, bytes):
        return "bytes", row
    if isinstance(row, str):
        return "string", row.encode()
    if isinstance(row, dict | list):
        try:
            return "json", json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"{shown(row)} cannot be written as JSON: {error}.") from None
    if isinstance(row, int) and not isinstance(row, bool):
        return "int", str(row).encode()
    if isinstance(row, float) and isfinite(row):
        return "float", format(Decimal(repr(row)), "f").encode()
    raise InvalidMessage(
        f"{shown(row)} is a {type(row).__name__}; a message is text, bytes, a number, or a dictionary or list for JSON."
    )
