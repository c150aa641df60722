"""Readings on their way to the state.

1. Spark hands a Python state processor its rows one by one, as Python objects, in every mode. So readings travel
   in packs: one row for a run of readings of a topic, with the bytes of its columns.
2. A topic's offsets lie in one task each, in their order: its packs, put in the order of their first offset, are too.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stafeta.pipeline.jobs.alerting.evaluation import Readings

SCHEMA: Final = "topic string, offsets binary, times binary, numbers binary"
_NAMES: Final = [column.split()[0] for column in SCHEMA.split(", ")]


def packed(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Packs of batches with the columns topic, offset, timestamp and number."""
    for batch in batches:
        if not batch.num_rows:
            continue
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        columns = [
            batch.column("offset").to_numpy(),
            batch.column("timestamp").cast(pa.int64()).to_numpy(),
            batch.column("number").to_numpy(zero_copy_only=False),  # null is NaN
        ]
        cuts = list(pairwise(edges))
        arrays = [
            pa.array([column[first:end].tobytes() for first, end in cuts], pa.binary()) for column in columns
        ]
        names = topics.dictionary.take(pa.array(codes[edges[:-1]]))
        yield pa.RecordBatch.from_arrays([names, *arrays], names=_NAMES)


def unpacked(row: Any) -> Readings:
    """The readings of a pack."""
    return Readings(
        np.frombuffer(row.offsets, np.int64),
        np.frombuffer(row.times, np.int64),
        np.frombuffer(row.numbers, np.float64),
    )
