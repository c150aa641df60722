"""The job compact: fewer files, the same rows, and nobody who reads or writes is disturbed."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.config.options import Compact
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.compact import JOB, Saved, compact, summary
from stafeta.pipeline.lake import Lake, archived, files
from stafeta.pipeline.lake.compaction import Merging, small
from stafeta.pipeline.lake.tables import TABLES
from tests.pipeline.lakes import (
    added,
    arrow,
    frame,
    message,
    offsets,
    parquet,
    run,
    settings,
    whole,
)
from tests.waiting import wait_until

DAY = 86_400.0
SIZE = 1 << 20
NOW = datetime.now(UTC)  # once: midnight may come while the tests run
TODAY = (NOW - datetime(1970, 1, 1, tzinfo=UTC)).days


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(settings(tmp_path))


def batches(lake: Lake, count: int, *, topic: str = "a", rows: int = 10) -> None:
    """So many commits, each of one small file."""
    for number in range(count):
        with lake.table("messages").transaction() as transaction:
            added(transaction, arrow(run(topic, 1 + number * rows, 1 + (number + 1) * rows)))


def compacted(lake: Lake, *, keep: float = DAY, size: int = SIZE, later: float = 0.0) -> Saved:
    return compact(lake, "messages", size=size, keep=keep, until=TODAY, now=time.time() + later)


def test_what_the_lake_says_to_have_stays_however_old_it_is(spark: SparkSession, lake: Lake) -> None:
    for number in range(3):
        lake.archive(frame(spark, run("a", 1 + number, 2 + number) + run("b", 1, 9)), "archive", number)
    table = lake.table("messages")
    for url in archived.urls(table):
        os.utime(files.place(url)[1], (1.0, 1.0))
    compacted(lake, keep=0.0, later=DAY)
    archived._read.cache_clear()
    assert archived.urls(table) <= {url for url, _, _ in files.found(table.location())}
    assert lake.archived() == {"a": [(1, 4)], "b": [(1, 9)]}


def test_small_files_become_large_ones_and_readers_go_on(spark: SparkSession, lake: Lake) -> None:
    batches(lake, 12)
    old = lake.table("messages").current_snapshot()
    assert old is not None
    reader = lake.frame(spark, "messages")
    expected = sorted(map(str, lake.table("messages").scan().to_arrow().to_pylist()))

    saved = compacted(lake)
    assert (saved.files_before, saved.files) == (12, 1)
    assert saved.bytes < saved.bytes_before
    assert (saved.snapshots, saved.removed) == (0, 0)
    table = lake.table("messages")
    assert sorted(map(str, table.scan().to_arrow().to_pylist())) == expected
    (task,) = table.scan().plan_files()
    assert parquet(task.file.file_path).column("offset").to_pylist() == whole(1, 120)
    assert reader.count() == 120  # which reads the old files
    assert lake.frame(spark, "messages", snapshot=old.snapshot_id).count() == 120

    again = compacted(lake)
    assert (again.files_before, again.files, again.snapshots, again.removed) == (1, 1, 0, 0)
    assert lake.table("messages").metadata_location == table.metadata_location

    # Two days later the old files are nobody's.
    last = compacted(lake, later=2 * DAY)
    assert last.snapshots == 12
    assert last.removed >= 12  # and the metadata of the snapshots
    assert last.freed > saved.bytes_before
    assert offsets(lake) == {"a": whole(1, 120)}
    assert len(files.listed(table.location())) == 1
    assert compacted(lake, later=2 * DAY)[5:8] == (0, 0, 0)


def test_a_snapshot_that_was_current_until_now_is_kept_however_old_it_is(
    spark: SparkSession, lake: Lake
) -> None:
    """Nobody has written for longer than old files are kept, and somebody reads."""
    batches(lake, 3)
    reader = lake.frame(spark, "messages")
    snapshot = lake.table("messages").current_snapshot()
    assert snapshot is not None
    wait_until(lambda: time.time() > snapshot.timestamp_ms / 1000 + 0.6)
    saved = compacted(lake, keep=0.5)
    assert (saved.files_before, saved.files) == (3, 1)
    assert reader.count() == 30


def test_files_that_are_large_enough_together_are_not_written_again_and_again(
    spark: SparkSession, lake: Lake
) -> None:
    """A day that makes a file and a bit: two files of which each is small."""
    noise = [(*row[:6], os.urandom(500), None) for row in run("a", 1, 400)]
    for start in range(0, 399, 50):
        with lake.table("messages").transaction() as transaction:
            added(transaction, arrow(noise[start : start + 50]))
    total = sum(task.file.file_size_in_bytes for task in lake.table("messages").scan().plan_files())
    for share in (1.2, 2.1):
        compacted(lake, size=round(total / share))
        before = lake.table("messages").metadata_location
        compacted(lake, size=round(total / share))
        assert lake.table("messages").metadata_location == before


def test_today_and_what_is_large_is_left_alone(spark: SparkSession, lake: Lake) -> None:
    for number in (1, 2):
        with lake.table("messages").transaction() as transaction:
            added(transaction, arrow([message("now", number, NOW)]))
    batches(lake, 2)
    saved = compacted(lake)
    assert (saved.files_before, saved.files) == (4, 3)
    found = [task.file for task in lake.table("messages").scan().plan_files()]
    assert small(found, 1, TODAY + 1) == []
    (group,) = small(found, SIZE, TODAY + 1)
    assert {file.partition[0] for file in group} == {TODAY}


def test_what_a_killed_writer_left_goes_when_it_is_old(spark: SparkSession, lake: Lake) -> None:
    batches(lake, 1)
    table = lake.table("messages")
    left = files.write(frame(spark, run("a", 1, 4)), TABLES["messages"], table.location())
    assert compacted(lake).removed == 0
    assert set(left) <= set(files.listed(table.location()))
    assert compacted(lake, later=2 * DAY).removed == len(left)
    assert not set(left) & set(files.listed(table.location()))
    assert offsets(lake) == {"a": whole(1, 10)}


def test_a_writer_at_work_keeps_its_files_however_short_old_ones_are_kept(
    spark: SparkSession, lake: Lake
) -> None:
    """Its files are there, and its commit is not."""
    batches(lake, 2)
    table = lake.table("messages")
    urls = files.write(frame(spark, run("b", 1, 4)), TABLES["messages"], table.location())
    compacted(lake, keep=0.0)
    lake.table("messages").add_files(urls)
    assert offsets(lake) == {"a": whole(1, 20), "b": whole(1, 3)}


def test_what_is_archived_meanwhile_is_not_lost(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """It is committed between the reading of the small files and the commit of the large one."""
    batches(lake, 3)
    where, table = settings(tmp_path), lake.table("messages")
    lake.archive(frame(spark, run("b", 1, 3)).coalesce(1), "archive", 0)  # after the table was looked up
    small_ones = [task.file for task in table.scan().plan_files()]
    assert len(small_ones) == 3
    assert Merging(table).merge(small_ones)
    assert offsets(Lake(where)) == {"a": whole(1, 30), "b": whole(1, 2)}
    assert len([*lake.table("messages").scan().plan_files()]) == 2
    # And where somebody else has put the same files together, nothing comes twice.
    assert not Merging(table).merge(small_ones)
    assert offsets(Lake(where)) == {"a": whole(1, 30), "b": whole(1, 2)}


def test_the_job_tells_what_it_saved(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(lake=settings(tmp_path), compact=Compact(size=SIZE))
    assert not JOB.start(Context(spark, config, "compact", str(tmp_path / "checkpoint")))
    assert capsys.readouterr().out == "There is no lake yet.\n"
    assert not (tmp_path / "lake").exists()
    batches(Lake(config.lake), 2)
    JOB.start(Context(spark, config, "compact", str(tmp_path / "checkpoint")))
    said = capsys.readouterr().out
    assert said.startswith("messages: 2 files of ")
    assert " are 1 of " in said
    assert said.endswith("; 0 snapshots and 0 files of 0 bytes are removed.\n")


def test_sizes_are_told_as_people_read_them() -> None:
    one = Saved("dead", 3, 1, 2_500_000, 999, 4, 5, 7_000_000_000)
    assert summary([one]) == (
        "dead: 3 files of 2.5 MB are 1 of 999 bytes; 4 snapshots and 5 files of 7.0 GB are removed."
    )


def test_where_nothing_old_is_kept_it_goes_at_once(spark: SparkSession, lake: Lake) -> None:
    batches(lake, 3)
    saved = compact(lake, "messages", size=SIZE, keep=0.0, until=TODAY)
    assert (saved.files, saved.snapshots) == (1, 3)
    named = [task.file.file_path for task in lake.table("messages").scan().plan_files()]
    assert files.listed(lake.table("messages").location()) == named
    assert offsets(lake) == {"a": whole(1, 30)}
