"""Readings on their way to the state.

1. What a task has read of a topic travels as a row: lists of offsets, times and numbers.
2. Only messages that a rule is about go along: silence is broken by any, the others are about numbers.
3. A row has offsets of a topic that follow each other: the rows of a topic, put in the order of their first offsets,
   are in order, whichever tasks they come from.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stafeta.pipeline.jobs.alerting import evaluation
from stafeta.pipeline.jobs.batches.readings import Readings

_LISTS: Final[dict[str, Any]] = {"offsets": pa.int64(), "times": pa.int64(), "numbers": pa.float64()}
_SCHEMA: Final = pa.schema(
    [("topic", pa.string()), *((name, pa.large_list(type_)) for name, type_ in _LISTS.items())]
)


def packed(readings: Readings, takes_all: Callable[[str], bool]) -> bytes | None:
    """The readings as bytes, which `unpacked` reads; None where there are none. Of a topic that does not take all, the
    messages that are no numbers are left out."""
    whole = np.array([takes_all(topic) for topic in readings.topics], bool)
    kept = np.flatnonzero(readings.is_number | whole[readings.codes])
    if not len(kept):
        return None
    codes = readings.codes[kept]
    firsts = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = pa.array(np.append(firsts, len(codes)), pa.int64())
    topics = [readings.topics[code] for code in codes[firsts].tolist()]
    lists = {
        name: pa.LargeListArray.from_arrays(ends, pa.array(getattr(readings, name)[kept], from_pandas=False))
        for name in _LISTS
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"topic": pa.array(topics), **lists}, _SCHEMA))
    return sink.getvalue().to_pybytes()


def unpacked(packs: Iterable[bytes]) -> dict[str, evaluation.Readings]:
    """The readings of each topic."""
    parts: dict[str, list[evaluation.Readings]] = {}
    for pack in packs:
        with pa.ipc.open_stream(pack) as reader:
            for batch in reader:
                columns: list[Any] = [batch.column(name) for name in _LISTS]
                ends = columns[0].offsets.to_numpy()
                flat = [column.flatten().to_numpy() for column in columns]
                topics: list[Any] = batch.column("topic").to_pylist()
                for row, topic in enumerate(topics):
                    part = slice(ends[row], ends[row + 1])
                    parts.setdefault(topic, []).append(evaluation.Readings(*(one[part] for one in flat)))
    return {topic: evaluation.joined(found) for topic, found in parts.items()}
