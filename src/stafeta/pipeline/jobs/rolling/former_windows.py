"""Windows as they were written beside checkpoints before they were Arrow's: Parquet files of Spark's, with sketches in
the bytes of Apache DataSketches (KLL, doubles)."""

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stafeta.errors import Unsound
from stafeta.pipeline.jobs.batches.readings import Numbers
from stafeta.pipeline.jobs.rolling.sketches import Sketches
from stafeta.pipeline.jobs.rolling.windows import NEVER, Windows
from stafeta.pipeline.lake.files import listed, place

_FAMILY: Final = 15  # KLL
_EMPTY, _SINGLE = 1, 4  # flags


def read(folder: str) -> Windows:
    """The windows and clocks in the files of a folder; none where there is none."""
    tables = []
    for url in listed(folder):
        system, path = place(url)
        with system.open_input_file(path) as file:
            tables.append(pq.read_table(file, coerce_int96_timestamp_unit="us"))
    return _windows(pa.concat_tables(tables).combine_chunks()) if tables else Windows.empty()


def _windows(rows: pa.Table) -> Windows:
    clocks = np.equal(rows.column("size").to_numpy(), 0)
    sketches = [_sketch(one) for one in rows.column("sketch").to_pylist()]
    columns: dict[str, Any] = {
        "size": _whole(rows.column("size")),
        "start": _whole(rows.column("start"), NEVER),
        "count": np.where(clocks, 0, _whole(rows.column("count"))),
    }
    for name in ("mean", "m2", "min", "max"):
        columns[name] = np.where(clocks, 0.0, rows.column(name).to_numpy())
    for name in ("first", "last"):
        edge: Any = rows.column(name).combine_chunks()
        time, offset, number = (pa.chunked_array([part]) for part in edge.flatten())
        columns |= {f"{name}_time": _whole(time.cast(pa.int64())), f"{name}_offset": _whole(offset)}
        columns[name] = np.where(clocks, 0.0, number.to_numpy())
    return Windows(
        rows.column("topic").combine_chunks(),
        columns,
        Sketches(
            np.concatenate([numbers for numbers, _ in sketches]),
            np.concatenate([levels for _, levels in sketches]),
            np.array([len(numbers) for numbers, _ in sketches], np.int64),
        ),
    )


def _whole(column: Any, missing: int = 0) -> Any:
    return column.fill_null(missing).to_numpy().astype(np.int64)


def _sketch(data: bytes | None) -> "tuple[Numbers, np.typing.NDArray[np.int8]]":
    """The numbers of a sketch in order, and their levels."""
    if data is None or (data[2] == _FAMILY and data[3] & _EMPTY):
        return np.empty(0), np.empty(0, np.int8)
    if data[2] != _FAMILY:
        raise Unsound("A window's sketch is none: what is left of the checkpoint is of no use. Remove it.")
    if data[3] & _SINGLE:
        return np.frombuffer(data, "<f8", 1, 8).astype(float), np.zeros(1, np.int8)
    height = data[18]
    starts = np.array(struct.unpack_from(f"<{height}i", data, 20))
    numbers = np.frombuffer(data, "<f8", offset=20 + 4 * height + 16).astype(
        float
    )  # after the least and the most
    sizes = np.diff(starts - starts[0], append=len(numbers))
    levels = np.repeat(np.arange(height, dtype=np.int8), sizes)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], levels[order]
