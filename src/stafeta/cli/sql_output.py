"""What `stafeta sql` makes of results: tables, JSON, CSV or a Parquet file, one Arrow batch after the other.

Nothing waits for a whole result: the widths of a table's columns are those of its first rows.
"""

import csv
import io
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from stafeta.errors import ConfigError
from stafeta.pipeline.sql.values import (
    is_number,
    is_variant,
    json_line,
    jsonable,
    one_line,
    shown,
    texts,
    variants,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SAMPLE: Final = 1000  # rows that decide how wide a table is
_WIDEST: Final = 60  # of a column, where there is no room for all
_GAP: Final = "  "


class _Lines:
    """Text for a stream; a blank line between two results, if they have a head."""

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self._stream = stream or sys.stdout.buffer
        self._results = 0
        self.shown = False

    def begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._results += bool(schema.names)
        self.shown = False

    def end(self) -> None:
        self._stream.flush()

    def drop(self) -> None:
        self._stream.flush()

    def _put(self, text: str | bytes) -> None:
        if text:
            self._stream.write(text.encode(errors="replace") if isinstance(text, str) else text)
            self.shown = True

    def _part(self) -> None:
        if self._results > 1:
            self._put("\n")


class Table(_Lines):
    """Aligned columns, cut at the width that there is."""

    def __init__(self, width: int | None = None, stream: IO[bytes] | None = None) -> None:
        super().__init__(stream)
        self._width = width

    def begin(self, schema: pa.Schema) -> None:
        super().begin(schema)
        self._right = [is_number(field.type) for field in schema]
        self._waiting: list[Sequence[str]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        rows: list[Sequence[str]] = [*zip(*map(shown, self._schema, batch.columns), strict=True)]
        if self._widths is None:
            self._waiting += rows
            if len(self._waiting) < _SAMPLE:
                return
            rows = self._start()
        self._put_rows(rows)

    def end(self) -> None:
        if self._widths is None and self._schema.names:
            self._put_rows(self._start())
        super().end()

    def _start(self) -> list[Sequence[str]]:
        """Prints the head; returns the rows that have waited for it."""
        rows, self._waiting = self._waiting, []
        names = [*map(one_line, self._schema.names)]
        self._widths = widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        if self._width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > self._width:
            widths[:] = [
                min(width, max(_WIDEST, len(name))) for width, name in zip(widths, names, strict=True)
            ]
        self._part()
        self._put_rows([names, ["-" * width for width in widths]])
        return rows

    def _put_rows(self, rows: Sequence[Sequence[str]]) -> None:
        assert self._widths is not None
        self._put("".join(self._line(row, self._widths) for row in rows))

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = []
        for value, width, right in zip(row, widths, self._right, strict=True):
            fitting = value if self._width is None else cut(value, width)
            cells.append(fitting.rjust(width) if right else fitting.ljust(width))
        line = _GAP.join(cells).rstrip()
        return (line if self._width is None else cut(line, self._width)) + "\n"


class Json(_Lines):
    """One object a line."""

    def begin(self, schema: pa.Schema) -> None:
        super().begin(schema)
        self._names = unique(schema.names)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = map(jsonable, self._schema, batch.columns)
        self._put(b"".join(json_line(self._names, row) for row in zip(*columns, strict=True)))


class Csv(_Lines):
    """With a head. Null is empty."""

    def begin(self, schema: pa.Schema) -> None:
        super().begin(schema)
        if schema.names:
            self._waiting_head = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._head()
        self._put_rows(zip(*map(texts, self._schema, batch.columns), strict=True))

    def end(self) -> None:
        if self._schema.names:
            self._head()
        super().end()

    def _head(self) -> None:
        if self._waiting_head:
            self._waiting_head = False
            self._part()
            self._put_rows([self._schema.names])

    def _put_rows(self, rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._put(text.getvalue())


class Parquet:
    """A file, which is there once it is whole. Of several results the last is kept."""

    shown = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._writer: pq.ParquetWriter | None = None

    def begin(self, schema: pa.Schema) -> None:
        if not schema.names:
            return
        import pyarrow.parquet as pq

        self._fields = list(schema)
        self._plain = pa.schema(
            pa.field(name, pa.string() if is_variant(field) else field.type, field.nullable)
            for name, field in zip(unique(schema.names), schema, strict=True)
        )
        try:
            self._writer = pq.ParquetWriter(self._draft, self._plain, compression="zstd")
        except OSError as error:
            raise self._unwritable(error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._writer is not None
        columns: list[Any] = [
            pa.array(variants(column), pa.string()) if is_variant(field) else column
            for field, column in zip(self._fields, batch.columns, strict=True)
        ]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._plain))
        except OSError as error:
            raise self._unwritable(error) from None

    def end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
                self._draft.replace(self._path)
            except OSError as error:
                raise self._unwritable(error) from None

    def drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()
            self._draft.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"--parquet: {self._path} cannot be written: {error.strerror or error}.")


def terminal_width() -> int | None:
    """How wide a table may be: as wide as the terminal, if it goes to one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def unique(names: Sequence[str]) -> list[str]:
    """Names of which none is there twice: topic, topic_2, …"""
    made: list[str] = []
    for name in names:
        free, count = name, 1
        while free in made or (count > 1 and free in names):
            count += 1
            free = f"{name}_{count}"
        made.append(free)
    return made
