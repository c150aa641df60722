"""The archive's files, as tasks write them."""

import errno
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stafeta.pipeline.connector.file_source import FileSourceStream
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import archive
from stafeta.pipeline.lake.syncing import SyncedFile
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.queries import address, connect, published

MIDNIGHT = datetime(2026, 11, 2, tzinfo=UTC)


def test_a_file_is_of_one_day_and_sorted_and_rows_are_as_published(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Clocks go to and fro over midnight, the last microsecond of a day included."""
    steps = [-1, 0, -(10**6), 1, 86_400 * 10**6, -2]
    times = [MIDNIGHT + timedelta(microseconds=step) for step in steps]
    payloads = [f"{step}" for step in steps]
    with connect(broker) as connection:
        for topic in ("b", "a"):
            rows = pa.table({"payload": payloads, "timestamp": pa.array(times, pa.timestamp("us", "UTC"))})
            connection.publish(topic, rows, kind="int")
    context = Context(spark, config_of(broker, tmp_path), "archive", str(tmp_path / "checkpoint"), once=True)
    (query,) = archive.start(context)
    assert query.awaitTermination(60)

    table = context.lake.table("messages")
    days: list[date] = []
    for task in table.scan().plan_files():
        file: Any = pq.read_table(task.file.file_path.removeprefix("file://"))
        keys = list(zip(file.column("topic").to_pylist(), file.column("offset").to_pylist(), strict=True))
        assert keys == sorted(keys)
        (day,) = {time.date() for time in file.column("timestamp").to_pylist()}
        assert task.file.partition[0] == (day - date(1970, 1, 1)).days
        days.append(day)
    assert sorted(days) == [date(2026, 11, day) for day in (1, 2, 3)]
    found: Any = table.scan().to_arrow().sort_by([("topic", "ascending"), ("offset", "ascending")])
    assert found.column("payload").to_pylist() == [payload.encode() for payload in payloads] * 2
    assert found.column("timestamp").to_pylist() == times * 2
    assert found.column("counter").to_pylist() == [1, 2, 3, 4, 5, 6] * 2
    assert context.lake.archived() == {"a": [(1, 7)], "b": [(1, 7)]}


def test_a_task_that_finds_the_disk_full_leaves_nothing_behind(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and the disk would get fuller."""
    with connect(broker) as connection:
        for day in range(2):
            times = pa.array([MIDNIGHT + timedelta(days=day)] * 5, pa.timestamp("us", "UTC"))
            connection.publish("a", pa.table({"payload": ["1"] * 5, "timestamp": times}), kind="int")
    options = {"broker": address(broker), "subscribe": "a", "startingOffsets": "earliest"}
    stream = FileSourceStream(ReadOptions.of(options, streaming=True), f"file://{tmp_path}/table", 0.0, 0)
    (task,) = stream.partitions({}, {"a": 11})
    writes, fails_at = 0, 0
    write = SyncedFile.write

    def full(self: SyncedFile, data: Any) -> int:
        nonlocal writes
        writes += 1
        if writes == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    monkeypatch.setattr(SyncedFile, "write", full)
    assert len({row["url"] for batch in stream.read(task) for row in batch.to_pylist()}) == 2
    known = files_in(tmp_path / "table")
    assert len(known) == 2
    for number in (1, writes // 2, writes):
        writes, fails_at = 0, number
        with pytest.raises(OSError, match="No space left"):
            list(stream.read(task))
        assert files_in(tmp_path / "table") == known
    stream.stop()


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_is_small_waits_for_more_but_not_for_ever_and_not_when_it_is_the_last(
    broker: BrokerProcess,
) -> None:
    options = {"broker": address(broker), "subscribe": "#", "maxOffsetsPerTrigger": "1000"}
    reading = ReadOptions.of(options | {"startingOffsets": "earliest"}, streaming=True)

    def stream(every: float, size: int) -> FileSourceStream:
        return FileSourceStream(reading, "file:///nowhere", every, size)

    def offered(one: FileSourceStream) -> dict[str, Any]:
        """What the next micro-batch would have, of all that is there."""
        found = one.latestOffset({}, one.getDefaultReadLimit())
        return {name: offset for name, offset in found.items() if name == "a"}

    patient, small, eager, last = (
        stream(3600, 1 << 20),
        stream(3600, 500),
        stream(0, 1 << 20),
        stream(3600, 1 << 20),
    )
    published(broker, a=["1"])
    last.prepareForTriggerAvailableNow()
    assert [offered(one) for one in (patient, small, eager, last)] == [{}, {}, {"a": 2}, {"a": 2}]
    published(broker, a=[str(number) for number in range(99)])
    assert [offered(one) for one in (patient, small)] == [{}, {"a": 101}]  # so much is not small
    patient._every = 0.0  # the time is over
    assert offered(patient) == {"a": 101}
    patient._every = 3600.0
    published(broker, a=[str(number) for number in range(900)])
    assert offered(patient) == {"a": 1001}  # as many as a micro-batch takes
    for one in (patient, small, eager, last):
        one.stop()
