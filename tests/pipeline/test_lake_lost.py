"""A catalog that is lost, or older than the tables: they are found again, as they were. Without Spark."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.errors import StoreDamaged
from stafeta.pipeline.lake import Lake, recovery
from stafeta.pipeline.lake import turns as lake_turns
from tests.pipeline.archives import copied
from tests.pipeline.lakes import added, arrow, offsets, run, settings, whole

MEMORY = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


def put(lake: Lake, first: int, last: int) -> None:
    """Commits each of these messages by itself."""
    for offset in range(first, last + 1):
        with lake.table("messages").transaction() as transaction:
            added(transaction, arrow(run("a", offset, offset + 1)))


def catalog_of(place: Path) -> Path:
    return place / "lake" / "catalog.db"


def metadata_of(lake: Lake) -> Path:
    return Path(lake.table("messages").metadata_location.removeprefix("file://"))


def test_a_catalog_that_is_lost_is_made_again(place: Path) -> None:
    put(Lake(settings(place)), 1, 3)
    catalog_of(place).unlink()
    lake = Lake(settings(place))
    assert lake.has("messages")
    assert not lake.has("dead")
    assert offsets(lake) == {"a": whole(1, 3)}
    put(lake, 4, 4)
    assert offsets(Lake(settings(place))) == {"a": whole(1, 4)}


@pytest.mark.parametrize("named", ["there", "gone"])
def test_a_catalog_that_is_older_goes_on_with_the_newest(place: Path, named: str) -> None:
    """What it names may be gone: a table keeps its last versions only."""
    lake = Lake(settings(place))
    put(lake, 1, 2)
    old = metadata_of(lake)
    shutil.copy(catalog_of(place), place / "copy")
    put(lake, 3, 5)
    newest = metadata_of(lake)
    for version in newest.parent.glob("*.metadata.json"):  # whatever clocks say
        os.utime(version, (0, 0) if version == newest else None)
    if named == "gone":
        old.unlink()
    os.replace(place / "copy", catalog_of(place))
    assert offsets(Lake(settings(place))) == {"a": whole(1, 5)}
    assert metadata_of(Lake(settings(place))) == newest


@pytest.mark.parametrize("how", ["by SQLite", "by bytes"])
def test_a_catalog_that_is_overwritten_in_place_goes_on_with_the_newest(place: Path, how: str) -> None:
    """Under a process that has it open, which looks up a table anew, or goes on with one that it has."""
    lake = Lake(settings(place))
    put(lake, 1, 2)
    shutil.copy(catalog_of(place), place / "copy")
    put(lake, 3, 4)

    def put_back() -> None:
        if how == "by SQLite":
            copied(place / "copy", catalog_of(place))
        else:
            catalog_of(place).write_bytes((place / "copy").read_bytes())

    inode = catalog_of(place).stat().st_ino
    put_back()
    assert catalog_of(place).stat().st_ino == inode
    assert offsets(lake) == {"a": whole(1, 4)}
    put(lake, 5, 5)
    table = lake.table("messages")
    put_back()
    with table.transaction() as transaction:  # the catalog is looked at when this is committed
        added(transaction, arrow(run("a", 6, 7)))
    put_back()
    with lake_turns.turn(table.location()):  # as a commit does
        table.refresh()
    assert offsets(lake) == {"a": whole(1, 6)}


def test_a_version_that_is_not_whole_or_comes_of_another_one_is_not_taken(place: Path) -> None:
    lake = Lake(settings(place))
    put(lake, 1, 2)
    before = metadata_of(lake)
    shutil.copy(catalog_of(place), place / "copy")
    put(lake, 3, 3)
    other = metadata_of(lake)
    os.replace(place / "copy", catalog_of(place))
    half = before.with_name(f"00099-{other.name.partition('-')[2]}")
    half.write_text(other.read_text()[:100])
    assert recovery.has_metadata(f"file://{before.parent.parent}")
    assert metadata_of(Lake(settings(place))) == other
    # A fork: the catalog names one child of a version, and another has a higher number.
    fork = before.with_name(f"00098-{before.name.partition('-')[2]}")
    fork.write_text(before.read_text())
    Lake(settings(place)).catalog.looked.clear()  # type: ignore[attr-defined]
    assert metadata_of(Lake(settings(place))) == other
    assert offsets(Lake(settings(place))) == {"a": whole(1, 3)}


def test_where_nothing_is_whole_it_is_said(place: Path) -> None:
    lake = Lake(settings(place))
    put(lake, 1, 1)
    for version in metadata_of(lake).parent.glob("*.metadata.json"):
        version.write_text("{")
        version.rename(version.with_name(f"1{version.name}"))
    lake.catalog.looked.clear()  # type: ignore[attr-defined]
    with pytest.raises(StoreDamaged, match="Restore the folder from a backup"):
        lake.has("messages")


@pytest.mark.parametrize("catalog", ["lost", "older"])
def test_a_file_that_is_gone_does_not_take_the_others_with_it(place: Path, catalog: str) -> None:
    """A table that is begun anew, or goes on with an older version, would have them removed as unused."""
    lake = Lake(settings(place))
    put(lake, 1, 2)
    shutil.copy(catalog_of(place), place / "copy")
    (gone,) = (task.file.file_path for task in lake.table("messages").scan("offset = 1").plan_files())
    put(lake, 3, 4)
    newest = metadata_of(lake)
    Path(gone.removeprefix("file://")).unlink()
    for version in newest.parent.glob("0000[01]-*.metadata.json"):  # as in a table that is older
        version.unlink()
    if catalog == "lost":
        catalog_of(place).unlink()
    else:
        os.replace(place / "copy", catalog_of(place))
    assert metadata_of(Lake(settings(place))) == newest


def test_versions_that_lack_files_are_not_taken_if_one_is_whole(place: Path) -> None:
    """As in a backup that was made while the archive ran: the metadata was copied after the files."""
    lake = Lake(settings(place))
    put(lake, 1, 2)
    whole_one = metadata_of(lake)
    shutil.copy(catalog_of(place), place / "copy")
    put(lake, 3, 3)
    (late,) = (task.file.file_path for task in lake.table("messages").scan("offset = 3").plan_files())
    put(lake, 4, 4)
    snapshot = lake.table("messages").current_snapshot()
    assert snapshot is not None
    Path(late.removeprefix("file://")).unlink()
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(b"")
    os.replace(place / "copy", catalog_of(place))
    assert metadata_of(Lake(settings(place))) == whole_one
    catalog_of(place).unlink()
    assert metadata_of(Lake(settings(place))) == whole_one


def test_a_catalog_that_is_newer_than_its_tables_is_said_to_be(place: Path) -> None:
    """The tables were put back, and the catalog was not. Without it they are found as they are."""
    lake = Lake(settings(place))
    put(lake, 1, 2)
    tables = catalog_of(place).parent / "stafeta"
    shutil.copytree(tables, place / "copy")
    put(lake, 3, 4)
    shutil.rmtree(tables)
    shutil.move(place / "copy", tables)
    lake.catalog.looked.clear()  # type: ignore[attr-defined]
    with pytest.raises(StoreDamaged, match=r"The catalog is newer than the table .* remove catalog\.db"):
        lake.has("messages")
    catalog_of(place).unlink()
    assert offsets(Lake(settings(place))) == {"a": whole(1, 2)}


def test_no_table_is_begun_anew_over_one_that_cannot_be_read(place: Path) -> None:
    lake = Lake(settings(place))
    put(lake, 1, 1)
    for version in metadata_of(lake).parent.glob("*.metadata.json"):
        version.write_text("{")
    catalog_of(place).unlink()
    with pytest.raises(StoreDamaged, match="The catalog is lost"):
        Lake(settings(place)).table("messages")


def test_a_table_whose_first_version_is_half_written_is_made(place: Path) -> None:
    """Somebody was killed who made it."""
    lake = Lake(settings(place))
    metadata_of(lake).write_text("{")
    catalog_of(place).unlink()
    put(Lake(settings(place)), 1, 1)
    assert offsets(Lake(settings(place))) == {"a": [1]}


def test_a_version_that_was_left_behind_is_older_than_what_the_newest_says(place: Path) -> None:
    """Somebody was killed before he removed it: the newest names its last versions only."""
    lake = Lake(settings(place))
    with lake.table("messages").transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    old = metadata_of(lake)
    shutil.copy(catalog_of(place), place / "copy")
    shutil.copy(old, place / "old")
    put(lake, 1, 4)
    assert not old.exists()
    shutil.copy(place / "old", old)
    os.replace(place / "copy", catalog_of(place))
    assert offsets(Lake(settings(place))) == {"a": whole(1, 4)}


def test_a_lake_may_be_reached_by_another_path_and_not_be_copied(place: Path) -> None:
    put(Lake(settings(place)), 1, 2)
    shutil.copy(catalog_of(place), place / "copy")
    put(Lake(settings(place)), 3, 4)
    (place / "linked").mkdir()
    (place / "linked" / "lake").symlink_to(place / "lake")
    assert offsets(Lake(settings(place / "linked"))) == {"a": whole(1, 4)}
    os.replace(place / "copy", catalog_of(place))
    assert offsets(Lake(settings(place / "linked"))) == {"a": whole(1, 4)}
    put(Lake(settings(place / "linked")), 5, 5)
    assert offsets(Lake(settings(place))) == {"a": whole(1, 5)}
    shutil.copytree(place / "lake", place / "other" / "lake")
    with pytest.raises(StoreDamaged, match="moved or copied"):
        Lake(settings(place / "other")).has("messages")


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EROFS])
def test_who_may_only_read_reads(place: Path, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    """Also from a disk that is mounted so, which is no matter of permissions."""
    lake = Lake(settings(place))
    put(lake, 1, 2)

    def refuse(path: str, *_: object) -> int:
        raise OSError(refusal, os.strerror(refusal), path)

    lake.catalog.looked.clear()  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert lake.has("messages")
    assert offsets(lake) == {"a": whole(1, 2)}
