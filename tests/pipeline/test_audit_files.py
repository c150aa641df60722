"""What audit says of a table's files, and of the lists of them, whatever was done to them. Without Spark."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestFile,
    clear_manifest_cache,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table

from stafeta.errors import StoreDamaged
from stafeta.pipeline.jobs.auditing import stored
from stafeta.pipeline.lake import Lake, archived
from tests.pipeline.lakes import BEGIN, settings
from tests.pipeline.test_lake_checksums import FILES, ROWS, filled, flipped

_PATH, _ROWS, _SIZE, _UPPER = 1, 4, 5, 11  # where a description has them


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return filled(tmp_path)[0]


def path_of(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def data_files(table: Table) -> list[str]:
    return sorted(task.file.file_path for task in table.scan().plan_files())


def lists(table: Table) -> list[ManifestFile]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(table.io)


def described(table: Table, change: Callable[[list[DataFile]], object]) -> None:
    """Lets the lists say something else of the files, in place."""
    read = [(one, one.fetch_manifest_entry(table.io)) for one in lists(table)]
    change([entry.data_file for _, entries in read for entry in entries])
    for one, entries in read:
        output, number = table.io.new_output(one.manifest_path), one.added_snapshot_id or 0
        with write_manifest(2, table.spec(), table.schema(), output, number, "deflate") as writer:
            for entry in entries:
                writer.add_entry(entry)


def listed(table: Table, change: Callable[[list[ManifestFile]], list[ManifestFile]]) -> None:
    """Lets the table have other lists."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = change(lists(table))
    output, number = table.io.new_output(snapshot.manifest_list), snapshot.sequence_number
    with write_manifest_list(
        2, output, snapshot.snapshot_id, snapshot.parent_snapshot_id, number, "deflate"
    ) as writer:
        writer.add_manifests(found)
    clear_manifest_cache()


def test_a_file_in_the_place_of_another_is_found_also_if_it_is_as_long(lake: Lake) -> None:
    table = lake.table("messages")
    one, other, third = data_files(table)
    paths = [path_of(url) for url in (one, other)]
    longest = max(len(path.read_bytes()) for path in paths)
    contents = [path.read_bytes().ljust(longest, b"\0") for path in paths]
    described(
        table,
        lambda found: [file._data.__setitem__(_SIZE, longest) for file in found if file.file_path != third],
    )
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    held = stored.examined(table)
    assert held.wrong == dict.fromkeys((one, other), stored.OTHER_CONTENT)
    assert held.sound == [third]


def test_files_that_have_changed_places_in_the_lists_are_found(lake: Lake) -> None:
    """Readers would leave out the one that has what they look for."""
    table = lake.table("messages")
    assert (sorted(stored.examined(table).sound), stored.examined(table).wrong) == (data_files(table), {})

    def exchange(found: list[DataFile]) -> None:
        one, other, _ = found
        for at in (_PATH, _SIZE):
            one._data[at], other._data[at] = other._data[at], one._data[at]

    described(table, exchange)
    held = stored.examined(table)
    assert sorted(held.wrong.values()) == [stored.OTHER_ROWS] * 2
    assert sorted(held.sound) == data_files(table), "they can be read all the same"


@pytest.mark.parametrize("what", [_ROWS, _UPPER])
def test_files_that_are_described_wrongly_are_found(lake: Lake, what: int) -> None:
    table = lake.table("messages")
    offset = table.schema().find_field("offset").field_id

    def change(found: list[DataFile]) -> None:
        if what == _ROWS:
            found[0]._data[_ROWS] += 1
        else:
            found[0]._data[_UPPER] = found[0].upper_bounds | {offset: (1).to_bytes(8, "little")}

    described(table, change)
    assert list(stored.examined(table).wrong.values()) == [stored.OTHER_ROWS]


def test_a_file_that_is_listed_twice_is_found(lake: Lake) -> None:
    table = lake.table("messages")
    described(table, lambda found: found[0]._data.__setitem__(slice(None), found[1]._data))
    held = stored.examined(table)
    assert list(held.wrong.values()) == [stored.TWICE]
    assert len(held.sound) == FILES - 1


def test_lists_that_are_missing_or_damaged_are_named_and_the_files_of_others_are_read(lake: Lake) -> None:
    table = lake.table("messages")
    missing, cut, _ = (one.manifest_path for one in lists(table))
    path_of(missing).unlink()
    path_of(cut).write_bytes(path_of(cut).read_bytes()[:100])
    held = stored.examined(table)
    assert held.wrong == {missing: stored.MISSING, cut: stored.UNREADABLE}
    assert len(held.sound) == 1
    assert [one.what for one in stored.findings(table, held.wrong)] == sorted(
        [
            f"metadata/{path_of(missing).name} {stored.MISSING}",
            f"metadata/{path_of(cut).name} {stored.UNREADABLE}",
        ]
    )
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path_of(snapshot.manifest_list).unlink()
    assert stored.examined(table) == ([], {snapshot.manifest_list: stored.MISSING})


def test_rows_that_others_have_deleted_are_found(lake: Lake) -> None:
    table = lake.table("messages")

    def mark(found: list[ManifestFile]) -> list[ManifestFile]:
        found[0]._data[3] = ManifestContent.DELETES
        return found

    listed(table, mark)
    assert list(stored.examined(table).wrong.values()) == [stored.DELETES]


def test_files_of_windows_have_checksums_too(tmp_path: Path) -> None:
    lake = Lake(settings(tmp_path))
    numbers = ("min", "max", "mean", "stddev", "p50", "p95", "p99", "first", "last")
    row = {"topic": "a", "size": "1m", "start": BEGIN, "end": BEGIN, "count": 1} | dict.fromkeys(numbers, 1.0)
    rows = pa.Table.from_pylist([row], lake.table("rollups").schema().as_arrow())
    lake.append("rollups", rows, "tests", 0)
    table = lake.table("rollups")
    (url,) = data_files(table)
    assert stored.examined(table) == ([url], {})
    flipped(url)
    held = stored.examined(table)
    assert held.wrong == {url: stored.OTHER_CONTENT}
    (found,) = stored.findings(table, held.wrong)
    assert found.what.startswith("rollups/data/")


def test_a_list_of_offsets_and_a_file_that_are_lost_together_are_said_to_be(lake: Lake) -> None:
    table = lake.table("messages")
    gone = data_files(table)[0]
    for url in archived.urls(table):
        path_of(url).unlink()
    archived._read.cache_clear()
    assert archived.known_in(table).archived == {"a": [(1, FILES * ROWS + 1)]}
    path_of(gone).unlink()
    with pytest.raises(StoreDamaged, match="What is archived is not known"):
        archived.known_in(table)
    left = archived.known_in_files(stored.examined(table).sound).archived
    assert sum(stop - start for start, stop in left["a"]) == (FILES - 1) * ROWS
    doubled = archived.known_in_files([*stored.examined(table).sound] * 2).archived
    assert doubled == left
