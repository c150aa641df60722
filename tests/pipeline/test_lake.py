"""Tables that Spark writes and pyiceberg commits: each batch once, whoever else commits, and readable by others."""

import pickle
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, event, text

from stafeta.config.options import Lake as Settings
from stafeta.errors import ConfigError, StoreConflict, StoreFull, Unsound
from stafeta.pipeline.jobs import audit
from stafeta.pipeline.lake import Lake, Written, catalog, files
from stafeta.pipeline.lake.archived import ARCHIVED, Known, known_in
from stafeta.pipeline.lake.archived import added as listed
from stafeta.pipeline.lake.tables import TABLES
from tests.pipeline.lakes import (
    BEGIN,
    SCHEMA,
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
from tests.pipeline.queries import setting


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(settings(tmp_path))


# --- what cannot be opened


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with pytest.raises(ConfigError, match=r"lake\.warehouse: the lake in .*lake cannot be opened"):
        Lake(settings(tmp_path)).table("messages")


def test_a_damaged_catalog_is_told(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "catalog.db").write_bytes(b"no database at all, " * 1000)
    with pytest.raises(ConfigError, match="file is not a database"):
        Lake(settings(tmp_path)).has("messages")


def test_a_catalog_that_another_process_keeps_locked_is_told_and_used_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_PATIENCE", 0.05)
    lake = Lake(settings(tmp_path))
    lake.table("messages")
    with closing(sqlite3.connect(tmp_path / "lake" / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(2):
            with pytest.raises(StoreConflict, match=r"catalog\.db: another process has kept .* locked"):
                lake.table("messages")
            catalog._catalogs.clear()  # who opens it is told the same
        other.execute("ROLLBACK")
    lake.table("messages")


def test_a_catalog_that_has_no_room_is_told(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/catalog.db")
    event.listen(engine, "handle_error", catalog.raise_plainly)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))
        with pytest.raises(StoreFull, match=r"catalog\.db: the disk has no room"):
            connection.execute(text("CREATE TABLE one (a)"))


def test_a_catalog_that_nobody_has_configured_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lake\.catalog: pyiceberg cannot open the catalog 'nobodys'"):
        Lake(Settings(warehouse=str(tmp_path), catalog="nobodys")).table("messages")


def test_a_bucket_needs_a_catalog() -> None:
    with pytest.raises(ConfigError, match="Name a catalog"):
        Lake(Settings(warehouse="s3://bucket/lake")).table("messages")


def test_asking_for_a_table_makes_no_lake(tmp_path: Path) -> None:
    lake = Lake(settings(tmp_path))
    assert not lake.exists
    assert not lake.has("messages")
    assert not (tmp_path / "lake").exists()


def test_those_who_make_a_table_at_once_get_the_same(tmp_path: Path) -> None:
    barrier = Barrier(6)

    def made(_: int) -> str:
        barrier.wait()
        return str(Lake(settings(tmp_path)).table("messages").metadata.table_uuid)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(made, range(6)))) == 1


# --- appending


def test_a_batch_of_a_writer_is_added_once(spark: SparkSession, lake: Lake) -> None:
    rows = frame(spark, run("a", 1, 4)).withColumnRenamed("producer", "reason")
    sent = pickle.loads(pickle.dumps(lake))  # as a closure takes it to another process
    done = [
        lake.append("dead", rows, "first", 0),
        sent.append("dead", rows, "first", 0),
        lake.append("dead", rows, "second", 0),
        lake.append("dead", rows, "first", 3),
        lake.append("dead", rows.limit(0), "first", 4),
        lake.append("dead", rows, "first", 4),
    ]
    nothing = Written(0, 0)
    assert [one.rows for one in done] == [3, 0, 3, 3, 0, 0]
    assert [one for one in done if not one.rows] == [nothing] * 3
    for batch, before in ((3, None), (5, 3)):  # what has come to 4 is not known to whoever writes this
        with pytest.raises(Unsound, match="its checkpoint is older than the lake"):
            lake.append("dead", rows, "first", batch, before)
    for label, rows_added in (("one", 3), ("one", 0), ("", 0)):
        assert lake.append("dead", rows, "third", 7, label=label).rows == rows_added
    with pytest.raises(Unsound, match="has batch 7 of third, which now writes 7"):
        lake.append("dead", rows, "third", 7, label="other")  # computed anew, of other messages maybe
    table = lake.table("dead")
    found: Any = table.scan().to_arrow()
    assert sorted(found.column("offset").to_pylist()) == sorted(whole(1, 3) * 4)
    named = {task.file.file_path for task in table.scan().plan_files()}
    assert named == set(files.listed(table.location()))  # what was not added has not stayed


def test_a_batch_that_others_come_before_is_added_after_them(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Others commit while this one's files are being written: two to the same table, one with messages that this
    batch has too."""
    lake.archive(frame(spark, run("a", 1, 4)), "archive", 0)
    where = settings(tmp_path)

    def meanwhile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _archived_elsewhere(where, arrow(run("b", 1, 3)))
            _archived_elsewhere(where, arrow(run("a", 4, 6)))
            yield batch

    mine = frame(spark, run("a", 3, 9)).coalesce(1).mapInArrow(meanwhile, frame(spark, []).schema)
    # What it has done when the batch is written again, it finds done.
    assert lake.archive(mine, "archive", 1).rows == 3
    assert offsets(lake) == {"a": whole(1, 8), "b": whole(1, 2)}
    assert lake.archived() == {"a": [(1, 9)], "b": [(1, 3)]}


def _archived_elsewhere(where: Settings, rows: Any) -> None:
    """What another process archives, unless it has."""
    table = Lake(where).table("messages")
    told = known_in(table).archived
    topic, (first, *_, last) = rows.column("topic")[0].as_py(), rows.column("offset").to_pylist()
    if any(start <= first < end for start, end in told.get(topic, [])):
        return
    with table.transaction() as transaction:
        added(transaction, rows)
        transaction.set_properties({ARCHIVED: listed(table, Known({topic: [(first, last + 1)]}, {}))})


def test_writers_side_by_side_lose_nothing(spark: SparkSession, lake: Lake) -> None:
    lake.table("messages")
    topics = ["a", "b", "c"]
    frames = {topic: [frame(spark, run(topic, 1 + 5 * n, 6 + 5 * n)) for n in range(3)] for topic in topics}
    barrier = Barrier(len(topics))

    def write(topic: str) -> None:
        barrier.wait()
        for number, rows in enumerate(frames[topic]):
            lake.archive(rows, topic, number)

    with ThreadPoolExecutor(len(topics)) as pool:
        list(pool.map(write, topics))
    assert offsets(lake) == dict.fromkeys(topics, whole(1, 15))
    assert lake.archived() == {topic: [(1, 16)] for topic in topics}


def test_what_is_archived_is_not_archived_again(spark: SparkSession, lake: Lake) -> None:
    added = [
        lake.archive(frame(spark, rows), "archive", number).rows
        for number, rows in enumerate(
            [
                run("a", 1, 4) + run("a", 7, 10) + run("b", 5, 6),
                run("a", 1, 4) + run("a", 8, 10),  # all old
                run("a", 2, 9) + run("c", 1, 3),  # with a gap in it that is new
                run("a", 9, 12) + run("b", 1, 8),
                [],
            ]
        )
    ]
    assert added == [7, 0, 5, 8, 0]
    assert offsets(lake) == {"a": whole(1, 11), "b": whole(1, 7), "c": whole(1, 2)}
    assert lake.archived() == {"a": [(1, 12)], "b": [(1, 8)], "c": [(1, 3)]}
    table = lake.table("messages")
    named = {task.file.file_path for task in table.scan().plan_files()}
    assert named == set(files.listed(table.location()))


def test_files_that_no_commit_names_are_not_seen(spark: SparkSession, lake: Lake) -> None:
    """As a writer leaves it that was killed before its commit."""
    table = lake.table("messages")
    assert files.write(frame(spark, run("a", 1, 4)), TABLES["messages"], table.location())
    assert offsets(lake) == {}
    assert lake.frame(spark, "messages").count() == 0
    lake.archive(frame(spark, run("a", 1, 4)), "archive", 0)
    assert offsets(lake) == {"a": whole(1, 3)}
    assert lake.frame(spark, "messages").count() == 3


def test_one_who_is_always_too_late_gives_up_with_a_sentence(lake: Lake) -> None:
    table = lake.table("messages")

    def change() -> bool:
        for one, topic in ((lake.table("messages"), "other"), (table, "mine")):
            with one.transaction() as transaction:
                added(transaction, arrow([message(topic, 1)]))
        return True

    with pytest.raises(StoreConflict, match="others change the table all the time"):
        lake._committed(table, change)
    assert offsets(lake) == {"other": [1] * 10}


# --- what others read


LATEST = datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC)


def test_files_are_of_one_day_and_sorted_and_read_alike_by_all(spark: SparkSession, lake: Lake) -> None:
    """In whatever time zone the session is."""
    days = [datetime(1970, 1, 1, tzinfo=UTC), BEGIN, LATEST, LATEST + timedelta(microseconds=1)]
    rows = [
        message(topic, offset, days[(offset + number) % 4] + timedelta(microseconds=offset % 3))
        for offset in range(40, 0, -1)
        for number, topic in enumerate(["upb/ștafetă", "a", "b/" + "x" * 250])
    ]
    with setting(spark, "spark.sql.session.timeZone", "America/Los_Angeles"):
        lake.archive(frame(spark, rows).repartition(3), "archive", 0)
        as_of_spark = lake.frame(spark, "messages").toArrow()
    table = lake.table("messages")
    for task in table.scan().plan_files():
        found: Any = parquet(task.file.file_path)
        assert found.schema.types == SCHEMA.types
        order = list(zip(found.column("topic").to_pylist(), found.column("offset").to_pylist(), strict=True))
        assert order == sorted(order, key=lambda row: (row[0].encode(), row[1]))
        (day,) = {time.date() for time in found.column("timestamp").to_pylist()}
        assert task.file.partition[0] == (day - date(1970, 1, 1)).days
    as_of_others = table.scan().to_arrow()
    assert as_of_others.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    expected = sorted(map(str, arrow(rows).to_pylist()))
    assert sorted(map(str, as_of_others.to_pylist())) == expected
    assert sorted(map(str, as_of_spark.cast(SCHEMA).to_pylist())) == expected
    # Files without such rows are left out; those that have some are of this day, and have no others.
    some = lake.frame(spark, "messages", row_filter=f"timestamp > '{LATEST.isoformat()}'")
    assert some.count() == sum(row[2] > LATEST for row in rows)


def test_an_older_snapshot_stays_as_it_was(spark: SparkSession, lake: Lake) -> None:
    lake.archive(frame(spark, run("a", 1, 3)), "archive", 0)
    snapshot = lake.table("messages").current_snapshot()
    assert snapshot is not None
    lake.archive(frame(spark, run("a", 3, 6)), "archive", 1)
    assert lake.frame(spark, "messages", snapshot=snapshot.snapshot_id).count() == 2
    assert lake.frame(spark, "messages").count() == 5


@pytest.mark.parametrize("name", ["my lake", "ștafetă", "50% +", "up/../down", "a#b?[c]{d,e}*\\f"])
def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "up").mkdir()
    lake = Lake(Settings(warehouse=f"{tmp_path}/{name}"))
    lake.archive(frame(spark, run("a", 1, 4)), "archive", 0)
    assert (tmp_path / name / "catalog.db").exists()
    assert offsets(lake) == {"a": whole(1, 3)}
    assert lake.frame(spark, "messages").count() == 3
    lake.archive(frame(spark, run("a", 4, 5)), "archive", 1)
    (gone,) = {task.file.file_path for task in lake.table("messages").scan("offset = 4").plan_files()}
    files.remove([gone])
    held = audit._lake(spark, lake, audit.Wanted("#"))
    assert held.messages.count() == 3
    assert len(held.findings) == 1


def test_opening_many_files_takes_no_task_for_each(spark: SparkSession, lake: Lake) -> None:
    """Spark would start a task for each of more than 32 files, only to look whether it is there."""
    for number in range(33):
        with lake.table("messages").transaction() as transaction:
            added(transaction, arrow([message("a", 1 + number)]))
    listing = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(listing)
    spark.sparkContext.setJobGroup("opening", "of a lake")
    try:
        opened = lake.frame(spark, "messages")
        assert not list(spark.sparkContext.statusTracker().getJobIdsForGroup("opening"))
    finally:
        spark.sparkContext.setJobGroup("tests", "")
    assert opened.count() == 33
    assert spark.conf.get(listing) == before
