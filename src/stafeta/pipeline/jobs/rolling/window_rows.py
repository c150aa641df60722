"""Windows as rows of the table `rollups`, and as messages.

Numbers in messages are written as Spark's `to_json` writes them, which is as Java does: `0.25`, `1.0E-4`, `1.25E7`.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions

from stafeta.names import MAX_BYTES, MAX_LEVELS
from stafeta.pipeline.jobs.batches.readings import Numbers
from stafeta.pipeline.jobs.rolling.windows import Windows
from stafeta.times import time_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

RANKS: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_expressions: Any = expressions  # the arguments that their types have are those of pydantic
_TIME: Final = pa.timestamp("us", tz="UTC")
_PLAIN: Final = (1e-3, 1e7)  # from where to where Java writes numbers without an exponent
_compute: Any = pc  # its types do not know all of it


def finished(windows: Windows, labels: Mapping[int, str]) -> pa.Table:
    """Windows in the columns of the table `rollups`."""
    count = windows["count"]
    sizes, places = np.unique(windows["size"], return_inverse=True)
    words = pa.array([labels[size] for size in sizes.tolist()], pa.string())
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(windows["m2"] / np.maximum(count - 1, 1))
    numbers = {
        **{name: windows[name] for name in ("min", "max", "mean")},
        "stddev": pa.array(deviation, mask=count < 2),
        **{name: windows.sketches.quantiles(rank) for name, rank in RANKS.items()},
        **{name: windows[name] for name in ("first", "last")},
    }
    columns: dict[str, Any] = {
        "topic": windows.topics,
        "size": words.take(places),
        "start": pa.array(windows["start"]).cast(_TIME),
        "end": pa.array(windows["start"] + windows["size"]).cast(_TIME),
        "count": pa.array(count),
        **{name: pa.array(column) for name, column in numbers.items()},
    }
    return pa.table(columns)


def closed_windows(table: "Table", topics: Sequence[str], time: int) -> Windows:
    """The windows of these topics in the table `rollups` that end after a time, as those that are closed."""
    later = _expressions.GreaterThan("end", time_of(time).isoformat())
    wanted = _expressions.And(_expressions.In("topic", topics), later)
    rows = table.scan(wanted, selected_fields=("topic", "start", "end")).to_arrow().combine_chunks()
    starts, ends = (rows.column(name).cast(pa.int64()).to_numpy() for name in ("start", "end"))
    names = rows.column("topic").cast(pa.string()).combine_chunks()
    return Windows.closed_before(names, ends - starts, starts)


def published(rows: pa.Table, prefix: str) -> pa.RecordBatch:
    """Rows of the table `rollups` as messages for `<prefix>/<size>/<topic>`. Of a topic whose name would be too long,
    there are none."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.schema.names}
    names = _compute.dictionary_encode(columns["topic"])
    quoted = pa.array([orjson.dumps(name).decode() for name in names.dictionary.to_pylist()], pa.string())
    parts: list[Any] = []
    for name, column in columns.items():
        parts.append(f'{"," if parts else "{"}"{name}":')
        if name == "topic":
            parts.append(quoted.take(names.indices))
        elif name == "size":
            parts += ['"', column, '"']
        elif pa.types.is_timestamp(column.type):
            times = _compute.dictionary_encode(column)  # topics have the same windows
            parts += ['"', _compute.strftime(times.dictionary, "%Y-%m-%dT%H:%M:%SZ").take(times.indices), '"']
        elif pa.types.is_floating(column.type):
            parts.append(json_numbers(column.to_numpy(zero_copy_only=False)))
        else:
            parts.append(column.cast(pa.string()))
    payload = _joined(*parts, "}")
    topic = _joined(f"{prefix}/", columns["size"], "/", columns["topic"])
    kind = pa.DictionaryArray.from_arrays(np.zeros(len(topic), np.int8), pa.array(["json"]))
    fits = _compute.and_(
        _compute.less_equal(_compute.binary_length(topic), MAX_BYTES),
        _compute.less(_compute.count_substring(topic, "/"), MAX_LEVELS),
    )
    return pa.RecordBatch.from_pydict({"topic": topic, "payload": payload, "kind": kind}).filter(fits)


def _joined(*parts: Any) -> Any:
    """Columns of text and words between them, put together row by row."""
    plain = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return _compute.binary_join_element_wise(*plain, "")


def json_numbers(numbers: Numbers) -> Any:
    """Numbers as JSON has them; what is infinite or no number is null, since JSON has neither."""
    size = np.abs(numbers)
    plain = ((size >= _PLAIN[0]) & (size < _PLAIN[1])) | (size == 0)
    text = pa.array(numbers, from_pandas=False).cast(pa.string())
    whole = _compute.invert(_compute.match_substring(text, "."))
    text = _compute.if_else(whole, _joined(text, ".0"), text)
    others = np.flatnonzero(~plain)
    if not len(others):
        return text
    finite = np.isfinite(numbers).tolist()
    written = [java_text(float(numbers[at])) if finite[at] else "null" for at in others.tolist()]
    return _compute.replace_with_mask(text, pa.array(~plain), pa.array(written, pa.string()))


def java_text(number: float) -> str:
    """A number that is not 0, with an exponent, as Java writes it."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    first, *rest = map(str, digits)
    assert isinstance(exponent, int)
    return f"{'-' * sign}{first}.{''.join(rest) or 0}E{exponent + len(rest)}"
