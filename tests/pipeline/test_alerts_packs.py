"""Readings in packs: what goes in comes out, topic by topic and in order."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.pipeline.jobs.alerting.evaluation import joined
from stafeta.pipeline.jobs.alerting.packs import packed, unpacked

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.none() | st.floats(allow_nan=False)))


def batch(found: list[tuple[str, int, int, float | None]]) -> pa.RecordBatch:
    topics, offsets, times, numbers = zip(*found, strict=True) if found else ((), (), (), ())
    columns: dict[str, Any] = {
        "topic": pa.array(topics, pa.string()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        "number": pa.array(numbers, pa.float64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(rows, st.integers(0, 20))
def test_readings_come_out_of_packs_as_they_went_in(
    found: list[tuple[str, int, float | None]], cut: int
) -> None:
    offsets = dict.fromkeys("abc", 0)
    messages: list[tuple[str, int, int, float | None]] = []
    for topic, time, number in found:
        offsets[topic] += 1
        messages.append((topic, offsets[topic], time, number))
    packs: dict[str, list[SimpleNamespace]] = {}
    for part in packed([batch(messages[cut:]), batch(messages[:cut])]):
        for row in part.to_pylist():
            packs.setdefault(row["topic"], []).append(SimpleNamespace(**row))
    assert packs.keys() == {topic for topic, *_ in messages}
    for topic, ones in packs.items():
        readings = joined(map(unpacked, ones))
        expected = [one[1:] for one in messages if one[0] == topic]
        assert readings.offsets.tolist() == [offset for offset, _, _ in expected]
        assert readings.times.tolist() == [time for _, time, _ in expected]
        numbers = [np.nan if number is None else number for _, _, number in expected]
        assert np.array_equal(readings.numbers, np.array(numbers), equal_nan=True)
