"""A catalog that is lost, or older than the tables: they are found again, as they were. Without Spark."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.errors import StoreDamaged
from stafeta.pipeline.lake import Lake, recovery
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
