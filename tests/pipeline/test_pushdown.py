"""Filters narrow a read to exactly the rows for which they hold, or are left to Spark."""

import operator
import pickle
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from stafeta.pipeline.connector.pushdown import Wanted, narrowed

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SCHEMA = pa.schema(TYPES)


class Row(NamedTuple):
    topic: str
    offset: int
    timestamp: datetime


def instant(microseconds: int) -> datetime:
    return NOON + timedelta(microseconds=microseconds)


def read(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """As a source does it: topics whole, offsets in ranges, and of these the rows."""
    found: list[Row] = []
    for topic in sorted({row.topic for row in rows if wanted.topic(row.topic)}):
        of_topic = [row for row in rows if row.topic == topic]
        first, next = wanted.offsets(of_topic[0].offset, of_topic[-1].offset + 1)
        ranged = [row for row in of_topic if first <= row.offset < next]
        batch = pa.RecordBatch.from_pylist([row._asdict() for row in ranged], SCHEMA)
        found += [Row(**row) for row in wanted.rows(batch).to_pylist()]
    return found


COMPARED: dict[type[Filter], Any] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


def holds(one: Any, row: Row) -> bool | None:
    """SQL's logic: None is neither true nor false."""
    if isinstance(one, Not):
        inner = holds(one.child, row)
        return None if inner is None else not inner
    value = getattr(row, one.attribute[0])
    if isinstance(one, IsNull | IsNotNull):
        return isinstance(one, IsNotNull)
    if isinstance(one, In):
        return value in one.value or (None if None in one.value else False)
    if one.value is None:
        return False if isinstance(one, EqualNullSafe) else None
    return bool(COMPARED[type(one)](value, one.value))


topics = st.sampled_from(["", "a", "a/b", "a/bc", "b", "ü/ț"])
offsets = st.one_of(st.integers(0, 12), st.sampled_from([-(2**63), 2**63 - 1]))
instants = st.integers(-3, 8).map(instant)
VALUES = {"topic": topics, "offset": offsets, "timestamp": instants}


def comparisons(name: str) -> st.SearchStrategy[Filter]:
    column, values = (name,), VALUES[name]
    kinds = [EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]
    if name == "topic":
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    return st.one_of(
        *[st.builds(kind, st.just(column), values) for kind in kinds],
        st.builds(EqualNullSafe, st.just(column), st.none()),
        st.builds(In, st.just(column), st.lists(st.one_of(values, values, values, st.none()))),
        st.sampled_from([IsNotNull(column), IsNull(column)]),
    )


plain = st.sampled_from([*VALUES]).flatmap(comparisons)
filters = st.lists(st.one_of(plain, plain, plain.map(Not)), max_size=5)


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Topics with offsets that follow each other, and timestamps that do not."""
    found = []
    for topic in draw(st.lists(topics, unique=True)):
        first = draw(st.integers(1, 6))
        times = draw(st.lists(instants, max_size=8))
        found += [Row(topic, first + index, time) for index, time in enumerate(times)]
    return sorted(found)


@given(logs(), filters)
@example([Row("a", 1, instant(5)), Row("a", 2, instant(0))], [LessThan(("timestamp",), instant(3))])
@example([Row("a", 1, NOON)], [GreaterThan(("offset",), 2**63 - 1), LessThan(("offset",), -(2**63))])
def test_what_is_read_and_then_filtered_by_spark_is_what_was_asked_for(
    rows: list[Row], pushed: list[Filter]
) -> None:
    wanted, rest = narrowed(pushed)
    assert all(any(one is given for given in pushed) for one in rest)
    found = [row for row in read(rows, wanted) if all(holds(one, row) for one in rest)]
    assert found == [row for row in rows if all(holds(one, row) for one in pushed)]
    assert pickle.loads(pickle.dumps(wanted)) == wanted


@pytest.mark.parametrize(
    "strange",
    [
        EqualTo(("topic",), None),
        EqualTo(("topic",), b"a"),
        In(("topic",), ("a", None)),
        StringEndsWith(("topic",), "a"),
        GreaterThan(("topic",), "a"),
        StringStartsWith(("offset",), "1"),
        EqualTo(("offset",), 1.0),
        EqualTo(("offset",), True),
        EqualTo(("offset",), "1"),
        LessThan(("offset",), 2**63),
        In(("offset",), (1, None)),
        EqualNullSafe(("offset",), None),
        EqualTo(("timestamp",), 1),
        EqualTo(("timestamp",), NOON.replace(tzinfo=None)),
        In(("timestamp",), (NOON, None)),
        EqualTo(("topic", "name"), "a"),
        EqualTo(("kind",), "int"),
        IsNotNull(("number",)),
        IsNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
    ],
)
def test_what_is_not_understood_is_left_to_spark(strange: Filter) -> None:
    understood = EqualTo(("topic",), "a")
    wanted, rest = narrowed([understood, strange])
    assert wanted == narrowed([understood])[0]
    assert [id(one) for one in rest] == [id(strange)]


@pytest.mark.parametrize(
    "understood",
    [
        EqualTo(("topic",), "a"),
        In(("topic",), ()),
        StringStartsWith(("topic",), "a/"),
        In(("offset",), (3, 1)),
        GreaterThanOrEqual(("offset",), 7),
        In(("timestamp",), (NOON,)),
        LessThan(("timestamp",), NOON.astimezone(timezone(timedelta(hours=-5)))),
        *(
            IsNotNull((name,))
            for name in ("topic", "offset", "timestamp", "producer", "source", "kind", "payload")
        ),
    ],
)
def test_what_is_understood_is_not_left_to_spark(understood: Filter) -> None:
    assert narrowed([understood])[1] == []


def test_nothing_is_narrowed_by_no_filters() -> None:
    wanted, rest = narrowed([])
    batch = pa.record_batch({"payload": [b"x"]})
    assert (wanted, rest) == (Wanted(), [])
    assert wanted.topic("any")
    assert wanted.offsets(3, 9) == (3, 9)
    assert (wanted.since, wanted.until, wanted.columns) == (None, None, frozenset())
    assert wanted.rows(batch) is batch


def test_a_range_of_offsets_needs_no_look_at_the_rows() -> None:
    wanted, _ = narrowed([GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 8)])
    assert wanted.offsets(1, 100) == (4, 9)
    assert wanted.offsets(6, 7) == (6, 7)
    assert wanted.offsets(9, 20) == (9, 9)
    assert wanted.columns == frozenset()
    assert narrowed([In(("offset",), (5, 4, 6))])[0].columns == frozenset()


def test_single_offsets_are_read_from_the_first_to_the_last() -> None:
    wanted, _ = narrowed([In(("offset",), (9, 4, 30)), LessThan(("offset",), 20)])
    assert wanted.offsets(1, 100) == (4, 10)
    assert wanted.columns == {"offset"}


def test_bounds_in_time_are_both_included() -> None:
    since = int(NOON.timestamp()) * 1_000_000
    wanted, _ = narrowed([GreaterThan(("timestamp",), NOON), LessThanOrEqual(("timestamp",), instant(9))])
    assert (wanted.since, wanted.until) == (since + 1, since + 9)
    assert wanted.columns == {"timestamp"}


def test_filters_that_exclude_each_other_want_no_topic() -> None:
    assert not narrowed([EqualTo(("offset",), 1), EqualTo(("offset",), 2)])[0].topic("a")
    assert not narrowed([In(("timestamp",), ())])[0].topic("a")


def test_a_batch_of_which_all_rows_are_wanted_is_handed_on_as_it_is() -> None:
    wanted, _ = narrowed([GreaterThan(("timestamp",), NOON)])
    batch = pa.record_batch({"timestamp": pa.array([instant(1), instant(2)], pa.timestamp("us", tz="UTC"))})
    assert wanted.rows(batch) is batch


LOG = [
    Row(topic, offset, NOON + timedelta(hours=offset))
    for topic in ("a/b", "a/c", "b")
    for offset in range(1, 9)
]


class Toy(DataSource):
    """A source with the three columns, which narrows what it reads."""

    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> str:
        return "topic string, offset long, timestamp timestamp"

    def reader(self, schema: Any) -> "ToyReader":
        return ToyReader()


class ToyReader(DataSourceReader):
    def __init__(self) -> None:
        self.wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        self.wanted, rest = narrowed(filters)
        assert not rest, f"not understood: {rest}"
        return iter(rest)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(row) for row in read(LOG, self.wanted)])


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("TOPIC = 'a/b' AND Offset < 3", 2),
        ("topic IN ('a/b', 'b') AND topic LIKE 'a%'", 8),
        ("topic <=> 'b' AND offset BETWEEN 3 AND 5.5", 3),
        ("offset IN (1, 4, 5)", 9),
        ("timestamp > '2026-11-16 13:00:00'", 6),  # in the session's zone: 18:00 in UTC
        ("timestamp = timestamp'2026-11-16 13:00:00Z' AND offset IS NOT NULL", 3),
        ("CAST(timestamp AS DATE) = DATE'2026-11-16'", 24),
    ],
)
def test_spark_passes_filters_in_the_form_that_is_expected(
    spark: SparkSession, condition: str, count: int
) -> None:
    spark.dataSource.register(Toy)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert spark.read.format("toy").load().where(condition).count() == count
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
