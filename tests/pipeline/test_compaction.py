"""Few files in a table that is committed to all the time, and none gone that somebody may still read. Without Spark."""

import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from stafeta.errors import StoreConflict, Unsound
from stafeta.pipeline.jobs.compact import compact
from stafeta.pipeline.lake import Lake, compaction, files, merging, turns, unused
from stafeta.pipeline.lake import lake as tables
from stafeta.pipeline.lake.compaction import Merging, alike, small, today
from stafeta.pipeline.lake.merging import DamagedFile, Source, merge
from stafeta.pipeline.lake.tables import LISTS, TABLES
from tests.pipeline.lakes import arrow, message, offsets, parquet, run, settings, whole
from tests.pipeline.queries import in_background

DAY = 86_400.0
NOW = 2_000_000_000.0
MEMORY = Path("/dev/shm")


@pytest.fixture
def lake() -> Iterator[Lake]:
    """In memory where there is such a thing: each commit syncs some ten files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Lake(settings(Path(folder)))


def put(lake: Lake, first: int, end: int, *, topic: str = "a") -> None:
    """Commits these messages in one file, as the archive does."""
    table = lake.table("messages")
    url = f"{table.location()}/data/{topic}{first}.parquet"
    with files.create(url) as sink:
        pq.write_table(arrow(run(topic, first, end)), sink, write_page_checksum=True)
    no_session: Any = None
    lake.archive_files(no_session, [url], {topic: [(first, end)]}, "tests", first)


def urls(lake: Lake) -> list[str]:
    return [task.file.file_path for task in lake.table("messages").scan().plan_files()]


def path(url: str) -> Path:
    return Path(url.removeprefix("file://"))


# --- few files


def test_who_commits_merges(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit is of one file, of a day that is over."""
    monkeypatch.setattr(compaction, "FEW", 4)
    most = 0
    for number in range(18):
        put(lake, 1 + number, 2 + number)
        most = max(most, len(urls(lake)))
    assert most <= compaction.FEW + 1
    assert offsets(lake) == {"a": whole(1, 18)}
    assert lake.archived() == {"a": [(1, 19)]}
    assert len(lake.table("messages").snapshots()) <= 18 + 6  # a merge each few commits, and no more


def test_files_are_merged_by_size_and_a_day_that_is_over_sooner(lake: Lake) -> None:
    for number in range(3):
        put(lake, 1 + number, 2 + number)
    (one, *_) = found = [task.file for task in lake.table("messages").scan().plan_files()]
    (day,) = {file.partition[0] for file in found}
    assert alike(found, compaction.SIZE, day) == []  # it is not over
    assert alike(found, compaction.SIZE, day + 1) == [found]
    assert [len(group) for group in alike(found * 6, compaction.SIZE, day)] == [18]
    assert alike(found * 6, one.file_size_in_bytes, day + 1) == []  # they are large enough
    classes = [compaction._class(size) for size in (1, 65_535, 65_536, (1 << 20) - 1, 1 << 20, 1 << 24)]
    assert classes == [0, 0, 1, 1, 2, 3]


def test_compact_in_turn_with_an_archive_that_never_rests(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit of compact's would meet one of the archive's."""
    monkeypatch.setattr(tables, "after_commit", lambda table: None)
    monkeypatch.setattr(compaction, "MOST", 5)
    for number in range(20):
        put(lake, 1 + number, 2 + number)
    ended, count, failed = threading.Event(), 0, []

    def archive() -> None:
        nonlocal count
        try:
            while not ended.is_set():
                put(lake, 1 + count, 2 + count, topic="b")
                count += 1
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=archive)
    thread.start()
    try:
        saved = compact(lake, "messages", size=1 << 20, keep=DAY, until=today())
    finally:
        ended.set()
        thread.join()
    assert not failed
    assert count
    assert saved.files_before >= 20
    assert saved.files < saved.files_before
    assert offsets(lake) == {"a": whole(1, 20), "b": whole(1, count)}
    assert lake.archived() == {"a": [(1, 21)], "b": [(1, count + 1)]}


def test_a_long_list_of_files_is_parted_and_of_the_lists_before_none_is_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a day's files, in one list, each merge wrote all anew, and kept what it had read of all lists before."""
    monkeypatch.setattr(tables, "after_commit", lambda table: None)
    monkeypatch.setattr(compaction, "MOST", 5)
    monkeypatch.setattr(compaction, "_LISTED", 4)
    table = lake.table("messages")
    with table.transaction() as changes:
        changes.remove_properties(*LISTS)  # as of a table that was made before
    names = []
    for number in range(40):
        names.append(f"{table.location()}/data/{number}.parquet")
        with files.create(names[-1]) as sink:
            pq.write_table(arrow(run("a", 1 + number, 2 + number)), sink, write_page_checksum=True)
    no_session: Any = None
    lake.archive_files(no_session, names, {"a": [(1, 41)]}, "tests", 1)
    one = Merging(lake.table("messages"))
    for group in small(one.files(), compaction.SIZE, today()):
        assert len(group) == 5
        assert one.merge(group)
        snapshot = lake.table("messages").current_snapshot()
        assert snapshot is not None
        lists = snapshot.manifests(lake.table("messages").io)
        assert set(one._lists) <= {found.manifest_path for found in lists}
        assert max(found.existing_files_count or 0 for found in lists) <= 4
        known = {
            path: [entry.data_file.file_path for entry in entries] for path, entries in one._lists.items()
        }
        again = Merging(lake.table("messages"))
        assert {file.file_path for file in again.files()} == {file.file_path for file in one.files()}
        assert (
            known.items()
            <= {
                path: [entry.data_file.file_path for entry in entries]
                for path, entries in again._lists.items()
            }.items()
        )
    assert lake.table("messages").properties.items() >= LISTS.items()
    assert len(urls(lake)) == 8
    assert offsets(lake) == {"a": whole(1, 40)}


def test_turns_are_taken_by_one_at_a_time_and_given_up_with_a_sentence(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    location = lake.table("messages").location()

    def other() -> None:
        with pytest.raises(StoreConflict, match="If it is stuck, end it"), turns.turn(location):
            pass

    with turns.turn(location), turns.turn_if_free(location, turns.COMMIT) as mine:
        assert not mine
        with turns.turn(location, turns.MERGE), turns.turn(location):  # whoever has it, has it
            pass
        with in_background(other):
            pass
    with turns.turn_if_free(location, turns.COMMIT) as mine:
        assert mine


# --- nothing gone that is read


def test_files_stay_for_as_long_as_they_are_kept_whatever_comes_after(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader begins, its files are replaced, and commits follow until the snapshots in between are forgotten, the
    replacement's among them. Those files have been there for days, and were replaced a minute ago."""
    monkeypatch.setattr(tables, "_SNAPSHOTS", 3)
    monkeypatch.setattr(tables, "after_commit", lambda table: None)
    for number in range(4):
        put(lake, 1 + number, 2 + number)
    reader = urls(lake)
    for url in reader:
        os.utime(path(url), (0, 0))
    now = time.time()
    for pause in range(3):
        compact(lake, "messages", size=1 << 20, keep=DAY, until=today(), now=now + 60 * pause)
        for number in range(6):
            put(lake, 5 + pause * 6 + number, 6 + pause * 6 + number)
    assert all(path(url).exists() for url in reader)
    assert len({row for url in reader for row in parquet(url).column("offset").to_pylist()}) == 4
    compact(lake, "messages", size=1 << 20, keep=DAY, until=today(), now=now + DAY + 3600)
    assert not any(path(url).exists() for url in reader)
    assert offsets(lake) == {"a": whole(1, 22)}


def test_the_time_counts_from_when_files_were_found_replaced(lake: Lake) -> None:
    """Whatever clock those had who committed, and however long nobody looked."""
    for number in range(3):
        put(lake, 1 + number, 2 + number)
    reader = urls(lake)
    assert Merging(lake.table("messages")).merge(
        [task.file for task in lake.table("messages").scan().plan_files()]
    )
    (note,) = unused.noted(lake.table("messages"))
    note.since = None  # as one leaves it who dies right after his commit
    note.write()
    unused.sweep(lake.table("messages"), 60.0, NOW)
    unused.sweep(lake.table("messages"), 60.0, NOW + 59)
    unused.sweep(lake.table("messages"), 60.0, NOW - 5000)  # the clock is set back: it counts anew
    unused.sweep(lake.table("messages"), 60.0, NOW - 4941)
    assert all(path(url).exists() for url in reader)
    unused.sweep(lake.table("messages"), 60.0, NOW - 4940)
    assert not any(path(url).exists() for url in reader)
    assert offsets(lake) == {"a": [1, 2, 3]}


def test_a_file_that_was_noted_before_it_was_committed_is_kept_when_it_is_replaced(lake: Lake) -> None:
    """A sweep sees it while its writer is at work; nobody looks again until it is replaced."""
    table = lake.table("messages")
    url = f"{table.location()}/data/slow.parquet"
    with files.create(url) as sink:
        pq.write_table(arrow([message("b", 1)]), sink)
    unused.sweep(table, 60.0, NOW)
    table.add_files([url])
    put(lake, 1, 2)
    table.refresh()
    assert Merging(table).merge([task.file for task in table.scan().plan_files()])
    for note in unused.noted(table):
        if note.replaced:
            note.since = NOW + 2 * DAY
            note.write()
    unused.sweep(table, 60.0, NOW + 2 * DAY + 59)
    assert path(url).exists()
    unused.sweep(table, 60.0, NOW + 2 * DAY + 60)
    assert not path(url).exists()


def test_a_merge_that_stood_still_until_its_file_was_swept_replaces_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that was stopped for hours, of a machine that slept, or beside a clock that was set."""
    for number in range(3):
        put(lake, 1 + number, 2 + number)
    described = parquet_files_to_data_files

    def standing_still(*arguments: Any) -> Any:
        made = list(described(*arguments))
        for later in (0.0, 2 * unused.UNDER_WAY):
            unused.sweep(lake.table("messages"), 60.0, NOW + later)
        return made

    monkeypatch.setattr(compaction, "parquet_files_to_data_files", standing_still)
    found = [task.file for task in lake.table("messages").scan().plan_files()]
    assert not Merging(lake.table("messages")).merge(found)
    assert offsets(lake) == {"a": [1, 2, 3]}
    monkeypatch.undo()
    assert Merging(lake.table("messages")).merge(found)
    assert offsets(lake) == {"a": [1, 2, 3]}


def test_nobody_commits_while_files_that_were_left_behind_go(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writer may come to itself just then."""
    put(lake, 1, 2)
    table, free = lake.table("messages"), []
    with files.create(f"{table.location()}/data/left.parquet") as sink:
        pq.write_table(arrow([message("b", 1)]), sink)
    unused.sweep(table, 60.0, NOW)
    removed = files.remove

    def removing(some: Iterable[str]) -> None:
        gone = list(some)
        if any("/data/" in url for url in gone):
            with turns.turn_if_free(table.location(), turns.COMMIT) as mine:
                free.append(mine)
        removed(gone)

    monkeypatch.setattr(files, "remove", removing)
    assert unused.sweep(table, 60.0, NOW + unused.UNDER_WAY).files
    assert free == [False]


def test_slow_readers_beside_a_lake_that_is_compacted_all_the_time(lake: Lake) -> None:
    """In real time: each reader plans, and reads what it has planned for almost as long as files are kept."""
    keep, rounds = 1.0, 4
    random = Random(16)
    for number in range(4):
        put(lake, 1 + number, 2 + number)
    ended, failed, read = threading.Event(), [], 0

    def reading() -> None:
        nonlocal read
        while not ended.is_set():
            begin = time.monotonic()
            planned = urls(lake)
            ended.wait(random.uniform(0, keep * 0.6))
            try:
                for url in planned:
                    parquet(url)
            except OSError as error:
                if time.monotonic() - begin < keep:  # else it was this test that was slow
                    failed.append(error)
            read += 1

    thread = threading.Thread(target=reading)
    thread.start()
    try:
        for number in range(rounds):
            put(lake, 5 + number, 6 + number)
            compact(lake, "messages", size=1 << 20, keep=keep, until=today())
            ended.wait(keep * 0.4)
    finally:
        ended.set()
        thread.join()
    assert not failed
    assert read
    assert offsets(lake) == {"a": whole(1, 4 + rounds)}


def test_whoever_archives_removes_what_is_old_now_and_then(lake: Lake) -> None:
    for number in range(2):
        put(lake, 1 + number, 2 + number)
    old = urls(lake)
    table = lake.table("messages")
    assert Merging(table).merge([task.file for task in table.scan().plan_files()])
    unused.sweep_now_and_then(table, 3600.0)
    assert all(path(url).exists() for url in old)
    unused.sweep_now_and_then(table, 0.0)  # too soon
    assert all(path(url).exists() for url in old)
    os.utime(path(table.location()) / "upkeep" / "swept", (0, 0))
    unused.sweep_now_and_then(table, 0.0)
    assert not any(path(url).exists() for url in old)
    assert offsets(lake) == {"a": [1, 2]}


# --- damage


def test_damage_is_not_merged_and_stops_nothing_else(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of a payload flips: every page is read, and what was read is compared with its checksum."""
    monkeypatch.setattr(tables, "after_commit", lambda table: None)
    for number in range(5):
        put(lake, 1 + 100 * number, 101 + 100 * number)
    bad = f"{lake.table('messages').location()}/data/a201.parquet"
    chunk = pq.ParquetFile(path(bad)).metadata.row_group(0).column(1)
    data = bytearray(path(bad).read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path(bad).write_bytes(data)
    saved = compact(lake, "messages", size=1 << 20, keep=0.0, until=today())
    (error,) = saved.damaged
    assert error.url == bad
    assert bad in str(error)
    assert saved.files == 2
    assert path(bad).read_bytes() == data
    assert bad in urls(lake)
    assert sum(task.file.record_count for task in lake.table("messages").scan().plan_files()) == 500


def test_a_file_that_is_cut_or_gone_or_another_one_is_found(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/one.parquet"
    pq.write_table(arrow(run("a", 1, 4)), path(url))
    definition = TABLES["messages"]
    with pytest.raises(DamagedFile, match="3 rows instead of 4"):
        merge([Source(url, 4)], definition, f"file://{tmp_path}/data")
    path(url).write_bytes(path(url).read_bytes()[:-9])
    with pytest.raises(DamagedFile, match="magic bytes"):
        merge([Source(url, 3)], definition, f"file://{tmp_path}/data")
    path(url).unlink()
    with pytest.raises(DamagedFile):
        merge([Source(url, 3)], definition, f"file://{tmp_path}/data")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize("seed", range(8))
def test_merged_rows_are_those_of_the_files_and_sorted(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in which file, read and written a few rows at a time."""
    random = Random(seed)
    monkeypatch.setattr(merging, "_MEMORY", 600)
    monkeypatch.setattr(merging, "_GROUP", 1000)
    rows = [message(topic, offset) for topic in ("a", "b/ș", "c") for offset in range(1, 40)]
    rows = random.sample(rows, len(rows))
    parts: list[list[Any]] = [[] for _ in range(random.randint(1, 6))]
    for row in rows:
        random.choice(parts).append(row)
    sources = []
    for number, part in enumerate(parts):
        ordered = (
            part if seed == 7 else sorted(part)
        )  # not even sorted: then all are there, in whichever order
        url = f"file://{tmp_path}/{number}.parquet"
        pq.write_table(arrow(ordered), path(url), row_group_size=random.randint(1, 50))
        sources.append(Source(url, len(part)))
    found = parquet(merge(sources, TABLES["messages"], f"file://{tmp_path}/data"))
    expected = arrow(sorted(rows))
    assert found.schema.equals(expected.schema)
    if seed == 7:
        found = found.sort_by([("topic", "ascending"), ("offset", "ascending")])
    assert found.equals(pa.table(expected))


def test_rows_that_get_lost_on_the_way_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/one.parquet"
    pq.write_table(arrow(run("a", 1, 4)), path(url))
    monkeypatch.setattr(merging, "_merged", lambda readers, order: iter([next(readers[0]).rows.slice(1)]))
    with pytest.raises(Unsound, match="3 rows became 2"):
        merge([Source(url, 3)], TABLES["messages"], f"file://{tmp_path}/data")
    assert not list((tmp_path / "data").iterdir())


def test_notes_that_were_never_finished_go(lake: Lake) -> None:
    """Their writer was killed, or the disk was full. Those of one who is at it stay, and so do locks."""
    put(lake, 1, 2)
    table = lake.table("messages")
    note = unused.note(table, [], replaced=False, since=None)
    left, fresh = (path(note.url).with_name(f"{'0' * 32}.json.{number}") for number in (1, 2))
    for draft in (left, fresh):
        draft.touch()
    locks = {one for one in left.parent.iterdir() if one.suffix == ".lock"}
    for one in (left, *locks):
        os.utime(one, (0, 0))
    unused.sweep(table, 60.0)
    assert locks
    assert {*left.parent.iterdir()} >= {fresh, *locks}
    assert not left.exists()
