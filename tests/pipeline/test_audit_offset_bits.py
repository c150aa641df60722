"""What an audit makes of small frames of lake and log: each fault in a topic of its own, found in one go."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from stafeta.pipeline.jobs.auditing import offset_bits, offsets
from stafeta.pipeline.jobs.auditing.findings import Tally
from stafeta.pipeline.jobs.auditing.offset_bits import Bounds, ranges_of
from stafeta.pipeline.lake.tables import TABLES
from stafeta.ranges import union, without

BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
EVERYTHING = (1, 301)


class Row(NamedTuple):
    topic: str
    offset: int
    timestamp: datetime
    producer: str
    source: str
    kind: str
    payload: bytes
    counter: int | None


def row(topic: str, offset: int, **changed: Any) -> Row:
    time = BEGIN + timedelta(microseconds=offset)
    plain = Row(topic, offset, time, "", "127.0.0.1:5", "string", str(offset).encode(), None)
    return plain._replace(**changed)


def rows(topic: str, *ranges: tuple[int, int]) -> list[Row]:
    return [row(topic, offset) for start, stop in ranges for offset in range(start, stop)]


class Planted:
    """Topics, each with what the lake and the log hold of it, and should."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lake: list[Row] = []
        self._log: list[Row] = []
        self.bounds: dict[str, Bounds] = {}

    def topic(
        self,
        name: str,
        *,
        lake: Iterable[Row] = (),
        log: Iterable[Row] = (),
        said: Iterable[tuple[int, int]] | None = (),
        held: tuple[int, int] = (1, 1),
        absent: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._lake += lake
        self._log += log
        if said is not None:
            self.bounds[name] = Bounds(name, tuple(said), *held, tuple(absent))

    def found(self, **now: Any) -> list[tuple[str, str, str, int]]:
        """Topic, what, where and how many."""
        lake, log = self._frame(self._lake), self._frame(self._log)
        bounds = offset_bits.bounds_frame(self._spark, self.bounds.values())
        told = offset_bits.collected(offset_bits.blocks(lake, log, bounds), 10_000)
        doubtful = [
            (one.topic, one.block) for one in told if one.block is not None and (one.twice or one.unlike)
        ]
        tally = Tally()
        if doubtful:
            offsets.judge_rows(tally, offset_bits.doubtful_rows(lake, log, bounds, doubtful, 10_000))
        first = {name: one.first for name, one in self.bounds.items()}
        end = {name: one.next for name, one in self.bounds.items() if one.next > 1}
        archived = {name: (*one.said, *one.absent) for name, one in self.bounds.items()}
        after = offsets.Now(
            first | now.get("first", {}), end | now.get("next", {}), archived | now.get("archived", {})
        )
        offsets.judge(tally, told, self.bounds, after)
        offsets.judge_ends(tally, self.bounds.values(), after)
        self.messages = sum(one.messages for one in told)
        return [(one.topic, one.what, one.where, one.count) for one in tally.findings()]

    def _frame(self, made: list[Row]) -> DataFrame:
        return self._spark.createDataFrame(made, TABLES["messages"].columns)


@pytest.fixture
def planted(spark: SparkSession) -> Planted:
    return Planted(spark)


def test_what_is_sound_is_found_sound(planted: Planted) -> None:
    def topic(name: str, lake: tuple[int, int], log: tuple[int, int], *absent: tuple[int, int]) -> None:
        said = [lake] if lake[0] < lake[1] else []
        planted.topic(name, lake=rows(name, lake), log=rows(name, log), said=said, held=log, absent=absent)

    topic("log only", (1, 1), (5, 200))
    topic("lake only", (1, 130), (1, 1))
    topic("lake then log", (1, 100), (100, 150))
    topic("both", (3, 100), (70, 131), (1, 3))
    topic("accepted", (1, 50), (70, 100), (50, 70))
    topic("gone before", (1, 1), (1_000_000_000, 1_000_000_010), (1, 1_000_000_000))
    topic("nothing", (1, 1), (1, 1))
    topic("lake ahead of the log's look", (1, 90), (50, 80))
    ahead = {"next": {"lake ahead of the log's look": 95}}
    assert planted.found(**ahead) == []
    assert planted.messages == 195 + 129 + 149 + 128 + 79 + 10 + 89


def test_each_kind_of_fault_is_found_where_it_is(planted: Planted) -> None:
    whole = [EVERYTHING]
    good: dict[str, Any] = {"said": whole, "held": EVERYTHING}

    def copies(topic: str, *changed: Row) -> dict[str, Any]:
        """The same in lake and log, but for these rows of the lake."""
        by_offset = {one.offset: one for one in changed}
        log = rows(topic, EVERYTHING)
        return {"lake": [by_offset.get(one.offset, one) for one in log], "log": log, **good}

    def differing(topic: str, **others: list[Row]) -> None:
        planted.topic(topic, **copies(topic) | others)

    differing("a repeated file", lake=rows("a repeated file", *whole, (60, 70)))
    differing("b log twice", log=rows("b log twice", *whole, (7, 8)))
    differing("c removed", lake=rows("c removed", (1, 50), (51, 301)))
    differing("d block removed", lake=rows("d block removed", (1, 60), (200, 301)))
    differing("e lost", log=rows("e lost", (1, 128), (192, 301)))
    both = rows("g gap in both", (1, 90), (91, 301))
    differing("g gap in both", lake=both, log=both)
    for topic, said, held, lake, log in (
        ("f gap", [(1, 100)], (103, 150), (1, 100), (103, 150)),
        ("h said too much", [(1, 300)], (1, 1), (1, 50), (1, 1)),
        ("i said too little", [(1, 20)], (1, 1), (1, 50), (1, 1)),
        ("j said nothing", None, (1, 1), (4, 6), (1, 1)),
        ("k another log", [(1, 50)], (1, 20), (1, 50), (1, 20)),
    ):
        planted.topic(topic, said=said, held=held, lake=rows(topic, lake), log=rows(topic, log))
    changed = [
        row("l changed", 2, payload=b"x"),
        row("l changed", 77, kind="bytes"),
        row("l changed", 130, timestamp=BEGIN),
        row("l changed", 200, producer="x"),
        row("l changed", 201, counter=7),
        row("l changed", 255, source="x"),
    ]
    planted.topic("l changed", **copies("l changed", *changed))
    # All at once, within 64 offsets.
    several = [
        one for one in copies("m several", row("m several", 5, payload=b"x"))["lake"] if one.offset != 9
    ]
    differing("m several", lake=[*several, row("m several", 12)])
    # Two messages that have changed places.
    swapped = row("n swapped", 3, payload=b"4"), row("n swapped", 4, payload=b"3")
    planted.topic("n swapped", **copies("n swapped", *swapped))

    assert sorted(planted.found()) == [
        ("a repeated file", offsets.LAKE_TWICE, "60-69", 10),
        ("b log twice", offsets.LOG_TWICE, "7", 1),
        ("c removed", offsets.ABSENT, "50", 1),
        ("d block removed", offsets.ABSENT, "60-199", 140),
        ("e lost", offsets.LOST, "128-191", 64),
        ("f gap", offsets.GAP, "100-102", 3),
        ("g gap in both", offsets.GAP, "90", 1),
        ("g gap in both", offsets.ABSENT, "90", 1),
        ("h said too much", offsets.GAP, "50-299", 250),
        ("h said too much", offsets.ABSENT, "50-299", 250),
        ("i said too little", offsets.UNSAID, "20-49", 30),
        ("j said nothing", offsets.UNSAID, "4-5", 2),
        ("k another log", offsets.OTHER_LOG, "20-49", 30),
        ("l changed", offsets.UNLIKE, "2, 77, 130, …", 6),
        ("m several", offsets.LAKE_TWICE, "12", 1),
        ("m several", offsets.UNLIKE, "5", 1),
        ("m several", offsets.ABSENT, "9", 1),
        ("n swapped", offsets.UNLIKE, "3-4", 2),
    ]


def test_what_is_collected_meanwhile_is_not_missed(planted: Planted) -> None:
    for topic, lake, log, held in (
        ("archived before", (1, 200), (150, 250), (60, 250)),
        ("archived since", (1, 100), (150, 250), (90, 250)),
        ("never archived", None, (80, 90), (1, 90)),
        ("removed", None, (1, 1), (1, 90)),
    ):
        said = [lake] if lake else []
        planted.topic(topic, lake=rows(topic, *said), log=rows(topic, log), said=said, held=held)
    first = {"archived before": 150, "archived since": 150, "never archived": 80, "removed": 90}
    now: dict[str, dict[str, Any]] = {"first": first, "archived": {"archived since": [(1, 150)]}}
    assert planted.found(**now) == []
    # What has gone and is archived nowhere is missed, and so is what has gone from above the log's beginning.
    now["archived"] = {"archived since": [(1, 140)]}
    now["first"]["never archived"] = 70
    assert planted.found(**now) == [
        ("archived since", offsets.GAP, "140-149", 10),
        ("never archived", offsets.GAP, "70-79", 10),
    ]


some_ranges = st.tuples(st.integers(1, 40), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))


@given(st.sets(st.integers(0, 63)), st.integers(0, 1 << 50))
def test_bits_are_the_offsets_of_their_block(bits: set[int], block: int) -> None:
    signed = sum(1 << bit for bit in bits)
    signed -= (signed >> 63) << 64
    found = [offset for start, stop in ranges_of(block, signed) for offset in range(start, stop)]
    assert found == sorted(block * 64 + bit for bit in bits)


@given(st.lists(some_ranges), st.lists(some_ranges))
def test_ranges_are_joined_and_taken_away(ones: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    def members(ranges: Iterable[tuple[int, int]]) -> set[int]:
        return {offset for start, stop in ranges for offset in range(start, stop)}

    merged = union(ones)
    assert members(merged) == members(ones)
    assert all(before[1] < after[0] for before, after in pairwise(merged))
    assert members(without(merged, others)) == members(ones) - members(others)
