"""Ranges of offsets against sets of them."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta import ranges as offsets
from stafeta.errors import Unsound
from stafeta.pipeline.lake.files import joined, ranges
from stafeta.ranges import Ranges, count, first_missing, merged, missing, united, within

numbers = st.sets(st.integers(1, 40))
by_topic = st.dictionaries(st.sampled_from("abc"), numbers)


def ranges_of(found: dict[str, set[int]]) -> Ranges:
    """Offsets as ranges, made the simple way."""
    made: Ranges = {}
    for topic, some in found.items():
        starts = sorted(one for one in some if one - 1 not in some)
        ends = sorted(one + 1 for one in some if one + 1 not in some)
        if some:
            made[topic] = list(zip(starts, ends, strict=True))
    return made


@given(by_topic, st.randoms())
def test_runs_are_joined_where_they_meet(found: dict[str, set[int]], random: Random) -> None:
    runs = [(topic, one, one + 1) for topic, some in found.items() for one in some]
    random.shuffle(runs)
    assert joined(runs) == ranges_of(found)


@given(numbers.filter(bool), st.data())
def test_an_offset_that_is_there_twice_is_told(found: set[int], data: st.DataObject) -> None:
    twice = data.draw(st.sampled_from(sorted(found)))
    runs = [("a", start, end) for start, end in ranges_of({"a": found})["a"]]
    with pytest.raises(Unsound, match="of topic 'a' is there twice"):
        joined([*runs, ("a", twice, twice + 1)])


@given(by_topic, by_topic)
def test_what_is_missing_is_what_is_wanted_and_not_known(
    wanted: dict[str, set[int]], known: dict[str, set[int]]
) -> None:
    left = {topic: some - known.get(topic, set()) for topic, some in wanted.items()}
    assert _numbers(missing(ranges_of(wanted), ranges_of(known))) == {k: v for k, v in left.items() if v}


@given(by_topic)
def test_nothing_is_missing_of_what_is_known_and_all_of_what_is_not(found: dict[str, set[int]]) -> None:
    assert missing(ranges_of(found), ranges_of(found)) == {}
    assert missing(ranges_of(found), {}) == ranges_of(found)


@given(by_topic, by_topic)
def test_ranges_are_united_with_others(known: dict[str, set[int]], more: dict[str, set[int]]) -> None:
    both = {topic: known.get(topic, set()) | more.get(topic, set()) for topic in {*known, *more}}
    assert united(ranges_of(known), ranges_of(more)) == ranges_of(both)
    assert count(ranges_of(both)) == sum(map(len, both.values()))


@given(numbers, st.integers(1, 40))
def test_the_first_that_is_missing_is_the_lowest_that_is_not_there(known: set[int], start: int) -> None:
    expected = next(one for one in range(start, 100) if one not in known)
    assert first_missing(ranges_of({"a": known}).get("a", []), start) == expected


@given(numbers)
def test_single_offsets_are_made_ranges(found: set[int]) -> None:
    assert offsets.ranges_of([*found, *found]) == ranges_of({"a": found}).get("a", [])


@given(st.lists(numbers))
def test_sorted_ranges_are_merged(some: list[set[int]]) -> None:
    every = ranges_of({"a": set().union(*some)}).get("a", [])
    assert list(merged(*(ranges_of({"a": one}).get("a", []) for one in some))) == every


@given(numbers, st.none() | st.integers(0, 41), st.none() | st.integers(0, 41))
def test_what_is_within_bounds_is_left(found: set[int], low: int | None, high: int | None) -> None:
    left = {one for one in found if (low is None or one >= low) and (high is None or one < high)}
    assert within(ranges_of({"a": found}).get("a", []), low, high) == ranges_of({"a": left}).get("a", [])


@given(by_topic, st.integers(1, 30), st.randoms())
def test_the_ranges_of_files_are_those_of_their_rows(
    tmp_path_factory: pytest.TempPathFactory, found: dict[str, set[int]], size: int, random: Random
) -> None:
    folder = tmp_path_factory.mktemp("files")
    rows = [(topic, one) for topic, some in found.items() for one in some]
    random.shuffle(rows)
    ordered = random.choice((sorted, list))
    parts = [ordered(rows[start : start + size]) for start in range(0, len(rows), size)] or [[]]
    assert ranges([_file(folder / f"{n}.parquet", part) for n, part in enumerate(parts)]) == ranges_of(found)


def _file(path: Path, rows: list[tuple[str, int]]) -> str:
    topics, offsets = [topic for topic, _ in rows], [offset for _, offset in rows]
    table = pa.table({"topic": pa.array(topics, pa.string()), "offset": pa.array(offsets, pa.int64())})
    pq.write_table(table, path, row_group_size=3)
    return path.as_uri()


def _numbers(found: Ranges) -> dict[str, set[int]]:
    return {topic: {one for run in runs for one in range(*run)} for topic, runs in found.items()}
