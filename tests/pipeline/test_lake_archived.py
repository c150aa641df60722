"""What the lake says to have: in small lists that cost what changes, without a difference to what was archived."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table

from stafeta.pipeline.lake import Lake, archived, files
from stafeta.pipeline.lake.archived import ARCHIVED, Known, known_in
from stafeta.ranges import Ranges, missing, united
from tests.pipeline import lakes


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(lakes.settings(tmp_path))


def changed(lake: Lake, archived_: Ranges, absent: Ranges | None = None) -> None:
    """Changes what the lake says, and nothing else."""
    table = lake.table("messages")
    with table.transaction() as transaction:
        transaction.set_properties({ARCHIVED: archived.added(table, Known(archived_, absent or {}))})


def archive(lake: Lake, topic: str, start: int, end: int) -> None:
    """Archives messages without Spark, which has only to write the file."""
    url = f"{lake.table('messages').location()}/data/{topic}-{start}.parquet"
    _, path = files.place(url)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(lakes.arrow(lakes.run(topic, start, end)), path)
    spark: Any = None
    lake.archive_files(spark, [url], {topic: [(start, end)]}, "tests", 0)


def lists(table: Table) -> list[tuple[str, int]]:
    return [(name, length) for name, length in json.loads(table.properties[ARCHIVED])]


def bytes_in(folder: Path, suffix: str) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob(f"*{suffix}")}


def test_a_commit_writes_what_it_changes_whatever_there_is(lake: Lake, tmp_path: Path) -> None:
    many: Ranges = {f"campus/building-{number % 40}/sensor-{number}": [(1, 2)] for number in range(10_000)}
    changed(lake, many)
    before = bytes_in(tmp_path, ".json")
    for number in range(20):
        archive(lake, "new", 1 + number, 2 + number)
    written = sum(size for path, size in bytes_in(tmp_path, ".json").items() if path not in before)
    assert written < 20 * 20_000 < sum(before.values())
    assert lake.archived() == many | {"new": [(1, 21)]}


class Said:
    """What of a table says what is archived, without a catalog that keeps it."""

    def __init__(self, folder: Path) -> None:
        self.properties: dict[str, str] = {}
        self._folder = folder

    def location(self) -> str:
        return str(self._folder)


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 60), min_size=1), max_size=30))
def test_lists_say_what_was_added_and_there_are_few(
    tmp_path_factory: pytest.TempPathFactory, commits: list[dict[str, int]]
) -> None:
    table: Any = Said(tmp_path_factory.mktemp("lists"))
    known: Ranges = {}
    absent: Ranges = {}
    for commit in commits:
        new = missing({topic: [(one, one + 3)] for topic, one in commit.items()}, known)
        gone: Ranges = {topic: [(100 + one, 102 + one)] for topic, one in commit.items() if one % 7 == 0}
        known, absent = united(known, new), united(absent, gone)
        table.properties[ARCHIVED] = archived.added(table, Known(new, gone))
        assert known_in(table) == (known, absent)
        assert known_in(table, ["a", "z"]) == Known(known, absent).of(["a"])
        assert all(one > 2 * following for (_, one), (_, following) in pairwise(lists(table)))
    assert archived.urls(table) <= {url for url, _, _ in files.found(table.location())}


def test_what_a_lake_said_before_there_were_lists_is_known_and_goes_on(lake: Lake) -> None:
    archive(lake, "a", 1, 4)
    archive(lake, "b", 5, 7)
    table = lake.table("messages")
    with table.transaction() as transaction:
        transaction.set_properties({ARCHIVED: json.dumps({"a": [[1, 4]], "b": [[5, 7]]})})
    assert known_in(table) == Known({"a": [(1, 4)], "b": [(5, 7)]}, {"b": [(1, 5)]})
    archive(lake, "a", 4, 6)
    assert known_in(lake.table("messages")) == Known({"a": [(1, 6)], "b": [(5, 7)]}, {"b": [(1, 5)]})
    assert len(lists(lake.table("messages"))) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_list_that_cannot_be_read_is_made_again_from_the_files(lake: Lake, damage: str) -> None:
    for start in range(1, 9):
        archive(lake, "a", start, start + 1)
    archive(lake, "b", 4, 6)
    folder = Path(files.place(lake.table("messages").location())[1]) / "archived"
    if damage == "gone":
        shutil.rmtree(folder)
    for one in folder.glob("*.json"):
        data = one.read_bytes()
        one.write_bytes(data[:-9] if damage == "cut" else data.replace(b"[1,", b"[3,"))
    archived._read.cache_clear()
    expected = Known({"a": [(1, 9)], "b": [(4, 6)]}, {"b": [(1, 4)]})
    assert known_in(lake.table("messages")) == expected
    archive(lake, "a", 9, 10)
    table = lake.table("messages")
    assert [Path(files.place(url)[1]).exists() for url in archived.urls(table)] == [True]
    archived._read.cache_clear()
    assert known_in(table) == Known({"a": [(1, 10)], "b": [(4, 6)]}, {"b": [(1, 4)]})


class Late(Lake):
    """Somebody else commits after it has looked its table up, and before it is its turn."""

    other: Callable[[], None] | None = None

    def table(self, name: str) -> Table:
        found = super().table(name)
        other, self.other = self.other, None
        if other is not None:
            other()
        return found


def test_what_others_have_committed_meanwhile_stays_said(lake: Lake, tmp_path: Path) -> None:
    """Of two archives: one of them accepts a loss, which changes properties alone."""
    late = Late(lakes.settings(tmp_path))
    archive(lake, "x", 1, 5)
    late.other = lambda: archive(lake, "x", 5, 9)
    late.accept({"y": [(1, 3)]})
    assert lake.known() == Known({"x": [(1, 9)]}, {"y": [(1, 3)]})
    url = f"{lake.table('messages').location()}/data/late.parquet"
    pq.write_table(lakes.arrow(lakes.run("x", 9, 12)), files.place(url)[1])
    late.other = lambda: lake.accept({"z": [(1, 2)]})
    spark: Any = None
    late.archive_files(spark, [url], {"x": [(9, 12)]}, "tests", 0)
    assert lake.known() == Known({"x": [(1, 12)]}, {"y": [(1, 3)], "z": [(1, 2)]})
    assert lakes.offsets(lake) == {"x": lakes.whole(1, 11)}
