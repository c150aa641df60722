"""The source of the rollup: what its tasks make of topics."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stafeta.pipeline.connector import planning
from stafeta.pipeline.connector import stream as connector_stream
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.jobs.batches import reading_source
from stafeta.pipeline.jobs.rolling import window_source
from stafeta.pipeline.jobs.rolling.windows import NEVER, Windows, encoded
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect

BEGIN = datetime(2026, 11, 16, 8, tzinfo=UTC)
SECOND = 1_000_000


def stream(broker: BrokerProcess, **options: str) -> window_source.WindowStream:
    given = {"broker": address(broker), "subscribe": "#", "startingOffsets": "earliest", **options}
    return window_source.WindowStream(ReadOptions.of(given, streaming=True), (SECOND, 60 * SECOND), 0)


def read(one: window_source.WindowStream) -> Windows:
    """What all tasks of a micro-batch make of all that there is, put together."""
    start = one.initialOffset()
    tasks = one.partitions(start, one.latestOffset(start, one.getDefaultReadLimit()))
    rows = [row for task in tasks for batch in one.read(task) for row in batch.to_pylist()]
    assert len({row["now"] for row in rows}) == 1, "all go by one time"
    parts = Windows.joined([Windows.unpack(row["parts"]) for row in rows])
    return parts.merged(encoded(parts.topics)[0], np.arange(len(parts)))[0]


def windows(found: Windows) -> list[dict[str, Any]]:
    """Without clocks, and what depends on how they were put together."""
    return found.where(found["size"] > 0).to_arrow().drop_columns(["mean", "m2"]).to_pylist()


@pytest.mark.parametrize("portion", [7, 250_000])
def test_each_reading_is_in_one_part_and_what_jobs_write_in_none(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(reading_source, "_ROWS", portion)
    times = pa.array(
        [BEGIN + timedelta(milliseconds=250 * at) for at in range(100)], pa.timestamp("us", "UTC")
    )
    with connect(broker) as connection:
        for topic in ("a", "b/c", "rollup/1s/a", "alerts/hot/a", "dead", "rollups"):
            readings = pa.table({"timestamp": times, "payload": [str(at) for at in range(100)]})
            connection.publish(topic, readings, kind="float")
        connection.publish("text", ["no number"])
    found = read(stream(broker, minPartitions="3"))
    counts = {
        size: {row["topic"]: 0 for row in found.to_arrow().to_pylist() if row["size"] == size}
        for size in (0, SECOND, 60 * SECOND)
    }
    assert counts == {
        0: dict.fromkeys(("a", "b/c", "rollups", "text"), 0),
        SECOND: dict.fromkeys(("a", "b/c", "rollups"), 0),
        60 * SECOND: dict.fromkeys(("a", "b/c", "rollups"), 0),
    }
    minute = found.where(found["size"] == 60 * SECOND)
    assert minute["count"].tolist() == [100, 100, 100]
    assert (minute["first"].tolist(), minute["last"].tolist()) == ([0.0] * 3, [99.0] * 3)
    assert minute.sketches.quantiles(0.5).tolist() == [49.0] * 3
    assert found.where(found["size"] == SECOND)["count"].tolist() == [4] * 25 * 3
    assert (found.where(found["size"] == 0)["start"] > NEVER).all()


def test_windows_are_the_same_where_topics_are_read_in_the_order_of_the_log(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ("a", "b", "c")
    with connect(broker) as connection:
        for number in range(40):
            rows = [
                {
                    "topic": topic,
                    "timestamp": BEGIN + timedelta(milliseconds=250 * number),
                    "payload": str(number),
                }
                for topic in topics
            ]
            connection.publish(None, pa.Table.from_pylist(rows), kind="float")
    expected = windows(read(stream(broker)))
    assert len(expected) == len(topics) * (10 + 1)
    for module in (planning, connector_stream):
        monkeypatch.setattr(module, "LEAST", 1000)
    together = stream(broker)
    start = together.initialOffset()
    tasks = together.partitions(start, together.latestOffset(start, together.getDefaultReadLimit()))
    assert len(tasks) > 1
    assert all(isinstance(task, planning.Task) and task.together for task in tasks)
    assert windows(read(together)) == expected
