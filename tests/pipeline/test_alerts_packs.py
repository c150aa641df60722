"""Readings in packs: what goes in comes out, topic by topic and in order."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stafeta.pipeline.jobs.alerting.packs import packed, unpacked
from stafeta.pipeline.jobs.batches.readings import Readings, readings_of

BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
Message = tuple[str, int, int, float | None]
"""Topic, offset, time (microseconds) and number."""

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.none() | st.floats()))


def read(found: list[Message], *, together: bool) -> Readings | None:
    """What a task reads: batches of a topic each, or of several in the order of the log."""
    parts = [found] if together else [[one for one in found if one[0] == topic] for topic in "abc"]
    batches = [batch(part) for mine in parts for part in (mine[:2], mine[2:]) if part]
    return readings_of(batches) if batches else None


def batch(found: list[Message]) -> pa.RecordBatch:
    topics, offsets, times, numbers = zip(*found, strict=True)
    columns: dict[str, Any] = {
        "topic": pa.array(topics),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(
            [BEGIN + timedelta(microseconds=time) for time in times], pa.timestamp("us", "UTC")
        ),
        "number": pa.array(numbers, pa.float64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def numbered(found: list[tuple[str, int, float | None]]) -> list[Message]:
    """Messages with the offsets of their topics."""
    offsets = dict.fromkeys("abc", 0)
    messages: list[Message] = []
    for topic, time, number in found:
        offsets[topic] += 1
        messages.append((topic, offsets[topic], time, number))
    return messages


@given(rows, st.integers(0, 20), st.booleans())
def test_readings_come_out_of_packs_as_they_went_in_but_for_what_no_rule_is_about(
    found: list[tuple[str, int, float | None]], cut: int, together: bool
) -> None:
    messages = numbered(found)
    tasks = [read(part, together=together) for part in (messages[cut:], messages[:cut])]
    packs = [packed(one, lambda topic: topic != "c") for one in tasks if one is not None]
    readings = unpacked(pack for pack in packs if pack is not None)
    concerned = [one for one in messages if one[0] != "c" or one[3] is not None]
    assert readings.keys() == {topic for topic, *_ in concerned}
    for topic, made in readings.items():
        expected = [one[1:] for one in concerned if one[0] == topic]
        assert made.offsets.tolist() == [offset for offset, _, _ in expected]
        assert made.times.tolist() == [time for _, time, _ in expected]
        numbers = [np.nan if number is None else number for _, _, number in expected]
        assert np.array_equal(made.numbers, np.array(numbers), equal_nan=True)
