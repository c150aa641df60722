"""Readings of many topics, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]

COLUMNS: Final = ("topic", "offset", "timestamp", "number")
"""What is read of the messages."""

_compute: Any = pc  # its types do not know all of it


@dataclass(frozen=True)
class Readings:
    """Messages in the order of their topics, and of each topic in that of their offsets. One that is no number has a
    null in its place: `is_number` says which have one."""

    topics: Sequence[str]
    codes: Integers
    """The place of each message's topic among the topics; it grows."""
    offsets: Integers
    times: Integers
    """Microseconds since 1970."""
    numbers: Numbers
    is_number: NDArray[np.bool_]


def readings_of(batches: "Sequence[RecordBatch]") -> Readings:
    """Batches of `COLUMNS`, in which the messages of each topic come in the order of their offsets."""
    table = pa.Table.from_batches(batches)
    topics: Any = _compute.dictionary_encode(table.column("topic").combine_chunks())
    codes = topics.indices.to_numpy()
    times: Any = table.column("timestamp").cast(pa.int64())
    numbers: Any = table.column("number")
    columns: tuple[Any, ...] = (
        codes.astype(np.int64),
        table.column("offset").to_numpy(),
        times.to_numpy(),
        numbers.to_numpy(),
        numbers.is_valid().to_numpy(),
    )
    if (codes[1:] < codes[:-1]).any():
        # Few numbers of two bytes are put in order several times as quickly.
        narrow = codes.astype(np.int16) if len(topics.dictionary) < 1 << 15 else codes
        order = np.argsort(narrow, kind="stable")
        columns = tuple(column[order] for column in columns)
    return Readings(topics.dictionary.to_pylist(), *columns)
