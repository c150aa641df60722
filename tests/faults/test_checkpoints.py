"""What a loss of power leaves of the checkpoint of a job: enough to go on, and nothing is missing that was
acknowledged."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from stafeta.pipeline import checkpoint_files, disk
from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.connector.spark_schema import schema_of
from stafeta.pipeline.connector.stream import TopicStream
from stafeta.pipeline.spark_log import recover
from tests.brokers import BrokerProcess
from tests.faults.power import WAYS, Event, Mark, disk_after
from tests.faults.recorder import Recorder

STATES = 3  # of each way, at each moment


def states(events: list[Event], random: Random) -> Iterator[tuple[dict[str, int], dict[str, bytes | None]]]:
    """What was marked before a loss of power, and what it leaves, at every moment."""
    marks: dict[str, int] = {}
    for count in range(1, len(events) + 1):
        last = events[count - 1]
        if isinstance(last, Mark):
            marks[last.what] = last.number
        left = disk_after(events[:count])
        for way in WAYS:
            for _ in range(1 if way in ("synced", "all") else STATES):
                yield dict(marks), left.left(way, random)


def test_what_a_job_wrote_down_stays_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.recording():
        for number in range(3):
            recorder.mark("begun", number)
            checkpoint_files.write(
                str(tmp_path / "jobs" / "windows"), "done.json", {"number": number, "text": "x" * 900}
            )
            recorder.mark("written", number)
    recorder.check()
    for marks, left in states(recorder.events, Random(1)):
        found = left.get("jobs/windows/done.json")
        assert found is not None or "written" not in marks
        if found is not None:
            told = json.loads(found)
            assert len(told["text"]) == 900
            assert marks.get("written", 0) <= told["number"] <= marks["begun"]


def test_files_that_others_wrote_stay_once_they_are_synced(tmp_path: Path) -> None:
    """As Spark's, which it does not sync; they may be removed meanwhile."""
    recorder = Recorder(tmp_path)
    folder = tmp_path / "windows" / "7"
    with recorder.recording():
        os.mkdir(tmp_path / "windows")
        os.mkdir(folder)
        for name in ("part-0", "part-1"):
            write(folder / name, name.encode() * 400)
        disk.Tree(folder).sync()
        recorder.mark("kept", 1)
    recorder.check()
    for marks, left in states(recorder.events, Random(2)):
        if "kept" in marks:
            assert left["windows/7/part-0"] == b"part-0" * 400
            assert left["windows/7/part-1"] == b"part-1" * 400


# --- a stream whose checkpoint Spark writes


def write(path: Path, data: bytes) -> None:
    """As Spark writes: under another name, and nothing is synced."""
    draft = path.with_name(f".{path.name}.tmp")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
    os.rename(draft, path)


class Noting(TopicStream):
    """Notes what is acknowledged just before it is."""

    def __init__(self, options: ReadOptions, schema: StructType, recorder: Recorder) -> None:
        super().__init__(options, schema)
        self.connection = super()._broker()
        acknowledge = self.connection.acknowledge

        def noted(filter_: str, offsets: dict[str, int], *, name: str) -> None:
            recorder.mark("acknowledged", offsets["hall"] - 2)  # message n is in micro-batch n - 1
            acknowledge(filter_, offsets, name=name)

        self.connection.acknowledge = noted  # type: ignore[method-assign,assignment]


def recorded(broker: BrokerProcess, folder: Path) -> Recorder:
    """A stream of two micro-batches of one message each, in the order in which Spark calls it."""
    host, port = broker.door("flight")
    recorder = Recorder(folder)
    place = folder / "alerts"
    options = {
        "broker": f"grpc://{host}:{port}",
        "subscribe": "hall",
        "startingOffsets": "earliest",
        "durable": "alerts",
        "maxOffsetsPerTrigger": "1",
        "checkpointLocation": str(place),
    }
    stream = Noting(ReadOptions.of(options, streaming=True), schema_of(("topic",), decode=False), recorder)
    with stream.connection as connection, recorder.recording():
        connection.publish("hall", ["1", "2"])
        for name in ("", "offsets", "commits", "state"):
            os.mkdir(place / name)
        write(place / "metadata", b'{"id":"7"}')
        at = stream.initialOffset()
        for number in range(2):
            end = stream.latestOffset(at, stream.getDefaultReadLimit())
            write(place / "offsets" / str(number), b"v1\n{}\n" + json.dumps(end).encode())
            stream.partitions(at, end)
            recorder.mark("read", number)
            write(place / "state" / f"{number}.changelog", b"s%d" % number * 600)
            write(place / "commits" / str(number), b"v1\n{}")
            at = end
        assert stream.latestOffset(at, ReadAllAvailable()) == at
        assert connection.cursors("hall", name="alerts") == {"hall": 3}
    recorder.check()
    return recorder


def test_a_query_goes_on_from_what_a_loss_of_power_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is planned as it was; what was acknowledged is committed; and Spark can read what it finds."""
    (tmp_path / "files").mkdir()
    with BrokerProcess(tmp_path / "data", doors=("flight",)) as broker:
        recorder = recorded(broker, tmp_path / "files")
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(disk, "BOOT", tmp_path / "boot")
    seen = 0
    for number, (marks, left) in enumerate(states(recorder.events, Random(3))):
        place = tmp_path / "left" / str(number)
        for path, data in left.items():
            if data is None:
                (place / path).mkdir(parents=True)
            else:
                (place / path).write_bytes(data)
        recover(str(place / "alerts"))
        logs = {
            name: {int(one.name): one.read_bytes() for one in (place / "alerts" / name).glob("[0-9]*")}
            for name in ("offsets", "commits")
        }
        for planned in range(marks.get("read", -1) + 1):
            assert logs["offsets"][planned].startswith(b"v1\n{}\n{"), (marks, left)
            assert left["alerts/metadata"] == b'{"id":"7"}'
        for done in range(marks.get("acknowledged", -1) + 1):
            assert logs["commits"][done] == b"v1\n{}", (marks, left)
            assert left[f"alerts/state/{done}.changelog"] == b"s%d" % done * 600
            seen += 1
        if (
            "acknowledged" in marks
        ):  # before, there is nothing to tell by, and nothing is lost if it begins anew
            assert all(data == b"v1\n{}" for data in logs["commits"].values()), (marks, left)
            assert all(json.loads(data.split(b"\n")[2]) for data in logs["offsets"].values()), (marks, left)
    assert seen > 20


def test_nothing_is_done_again_while_the_system_runs(tmp_path: Path) -> None:
    """A query that was killed has lost nothing."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / str(number)).write_text("v1\n{}")
    checkpoint_files.write(str(tmp_path), "synced.json", {"commit": 1, "boot": disk.boot()})
    recover(str(tmp_path))
    assert len(list((tmp_path / "commits").iterdir())) == 3
    checkpoint_files.write(str(tmp_path), "synced.json", {"commit": 1, "boot": "another"})
    recover(str(tmp_path))
    assert sorted(one.name for one in (tmp_path / "commits").iterdir()) == ["0", "1"]
