"""Readings of many topics, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]

COLUMNS: Final = ("topic", "offset", "timestamp", "number")
"""What is read of the messages."""


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
    """Batches of `COLUMNS`, each of one topic, those of a topic one after the other, in the order of their offsets."""
    topics: list[str] = []
    codes = []
    for batch in batches:
        topic = batch.column("topic")[0].as_py()
        if not topics or topics[-1] != topic:
            topics.append(topic)
        codes.append(np.full(batch.num_rows, len(topics) - 1, np.int64))
    numbers: list[Any] = [batch.column("number") for batch in batches]
    return Readings(
        topics,
        np.concatenate(codes),
        np.concatenate([batch.column("offset").to_numpy() for batch in batches]),
        np.concatenate([batch.column("timestamp").cast(pa.int64()).to_numpy() for batch in batches]),
        np.concatenate([one.to_numpy(zero_copy_only=False) for one in numbers]),
        np.concatenate([one.is_valid().to_numpy(zero_copy_only=False) for one in numbers]),
    )
