"""Small Parquet files into a large one, sorted as they are, in little memory.

Checksums of files and of their pages are compared: damage that was merged would have checksums that fit.
"""

import uuid
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stafeta.errors import Unsound
from stafeta.pipeline.lake.files import create, finished, is_changed, place, remove
from stafeta.pipeline.lake.tables import Definition

_MEMORY: Final = 128 << 20  # bytes of rows that are read ahead, of all files together
_GROUP: Final = 32 << 20  # bytes of a row group, before they are compressed
_ROWS: Final = 250_000  # of a row group at the most
_REPEATING: Final = {"topic", "producer", "source", "kind", "size", "reason"}
_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_compute: Any = pc  # its types do not know all of it


class Source(NamedTuple):
    """A file, and how many rows it has to have."""

    url: str
    rows: int


class DamagedFile(Unsound):
    """A file that cannot be read, or is not what it was when it was written."""

    def __init__(self, url: str, why: object) -> None:
        super().__init__(f"The lake's file {url} is damaged: {why}")
        self.url = url


def merge(sources: Sequence[Source], definition: Definition, folder: str) -> str:
    """Writes the rows of files of one day as one new file below a URL, sorted; returns its URL."""
    schema = pa.schema([(name, _TYPES[type_]) for name, type_ in definition.types.items()])
    target = f"{folder}/{uuid.uuid4().hex}.parquet"
    readers = [_heads(source, schema, definition.order, _MEMORY // len(sources)) for source in sources]
    with create(target, sealed=True) as sink:
        try:
            written = _write(_merged(readers, definition.order), schema, sink)
            expected = sum(source.rows for source in sources)
            if written != expected:
                raise Unsound(f"{expected} rows became {written}: the files are left as they were.")
        except BaseException:
            remove([target])
            raise
    return finished(target, sink)


class _Head:
    """The next rows of a file."""

    def __init__(self, rows: pa.Table, order: tuple[str, ...], *, last: bool) -> None:
        self.rows = rows
        self.last = last
        """Whether there are no more after these."""
        self.begin = _key(rows, order, 0)
        self.end = _key(rows, order, -1)


def _heads(
    source: Source, schema: pa.Schema, order: tuple[str, ...], memory: int
) -> Generator[_Head, None, None]:
    """The rows of a file, some at a time."""
    system, path = place(source.url)
    try:
        if is_changed(source.url):
            raise DamagedFile(source.url, "it is not what was written.")
        with pq.ParquetFile(
            path, filesystem=system, page_checksum_verification=True, buffer_size=1 << 20
        ) as file:
            about = file.metadata
            if about.num_rows != source.rows:
                raise DamagedFile(source.url, f"it has {about.num_rows} rows instead of {source.rows}.")
            weight = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
            count = max(1, min(1 << 16, memory * about.num_rows // max(weight, 1)))
            read = 0
            for batch in file.iter_batches(count, columns=schema.names, use_threads=False):
                read += batch.num_rows
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    yield _Head(rows, order, last=read == about.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(source.url, error) from None


def _merged(readers: Sequence[Iterator[_Head]], order: tuple[str, ...]) -> Iterator[pa.Table]:
    """The rows of all, in order as far as each is: with what is there of each up to where the first of them ends."""
    heads = [(head, reader) for reader in readers if (head := next(reader, None)) is not None]
    while heads:
        everything = all(head.last for head, _ in heads)  # as of many small files, which are read whole
        cut = min(range(len(heads)), key=lambda at: heads[at][0].end)
        limit = heads[cut][0].end
        parts: list[pa.Table] = []
        left = []
        for at, (head, reader) in enumerate(heads):
            rest: _Head | None = None
            if everything or at == cut:  # whole: so there is an end, whatever the order of the rows
                parts.append(head.rows)
            elif head.begin > limit:
                rest = head
            else:
                inside = _upto(head.rows, order, limit)
                parts.append(head.rows.filter(inside))
                others = head.rows.filter(_compute.invert(inside))
                rest = _Head(others, order, last=head.last) if others.num_rows else None
            rest = rest or next(reader, None)
            if rest is not None:
                left.append((rest, reader))
        heads = left
        yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in order])


def _key(rows: pa.Table, order: tuple[str, ...], at: int) -> tuple[Any, ...]:
    """The key of a row; what is null comes before all others."""
    found: list[Any] = []
    for name in order:
        value = rows.column(name)[at].as_py()
        found += [value is not None, value] if value is not None else [False]
    return tuple(found)


def _upto(rows: pa.Table, order: tuple[str, ...], limit: tuple[Any, ...]) -> Any:
    """Which rows come no later than a key."""
    if len(limit) < 2 * len(order):  # a null
        return pa.array([False] * rows.num_rows)
    (first, second), (_, low, _, high) = order, limit
    columns: Any = rows.column(first), rows.column(second)
    types = columns[0].type, columns[1].type
    below = _compute.less(columns[0], pa.scalar(low, types[0]))
    same = _compute.equal(columns[0], pa.scalar(low, types[0]))
    inside = _compute.or_(
        below, _compute.and_(same, _compute.less_equal(columns[1], pa.scalar(high, types[1])))
    )
    return _compute.fill_null(inside, fill_value=True)


def _write(rows: Iterator[pa.Table], schema: pa.Schema, sink: Any) -> int:
    count = waiting = size = 0
    parts: list[pa.Table] = []
    repeating: Any = [name for name in schema.names if name in _REPEATING]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeating,
        write_page_checksum=True,
    ) as writer:
        for part in rows:
            parts.append(part)
            count, waiting, size = count + part.num_rows, waiting + part.num_rows, size + part.nbytes
            if waiting >= _ROWS or size >= _GROUP:
                writer.write_table(pa.concat_tables(parts))
                parts, waiting, size = [], 0, 0
        if waiting:
            writer.write_table(pa.concat_tables(parts))
    return count
