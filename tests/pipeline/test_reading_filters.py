"""Filters on topic, offset and timestamp: the same rows with pushing and without, and fewer out of the source."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.brokers import BrokerProcess
from tests.pipeline.queries import connect, numbered, read, rows_from_source, seen, setting

PUSHING = "spark.sql.python.filterPushdown.enabled"
EIGHT = datetime(2026, 11, 1, 8, tzinfo=UTC)
# Producers set times as they like: they need not grow with the offsets.
MINUTES = [0, 1, 2, 9, 3, 4, 1, 5, 6, 7]
ALL = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Three topics of ten messages each, with the same times."""
    keeping = ("--set", 'topics."#".keep=100d')
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *keeping, doors=("flight",)) as process:
        times = pa.array([EIGHT + timedelta(minutes=minute) for minute in MINUTES], pa.timestamp("us", "UTC"))
        with connect(process) as connection:
            for topic in ("hall/a", "hall/b", "lab"):
                connection.publish(topic, pa.table({"payload": numbered(1, 10), "timestamp": times}))
        yield process


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("topic = 'hall/a'", 10),
        ("topic IN ('hall/a', 'lab', 'none')", 20),
        ("topic LIKE 'hall/%'", 20),
        ("topic = 'none'", 0),
        ("offset = 3", 3),
        ("offset >= 3 AND offset < 5", 6),
        ("offset IN (2, 9)", 6),
        ("offset > 100", 0),
        ("topic = 'lab' AND offset <= 4 AND kind = 'string'", 4),
        ("timestamp >= '2026-11-01 08:05:00Z'", 12),
        ("timestamp > '2026-11-01 08:01:00Z' AND timestamp <= '2026-11-01 08:04:00Z'", 9),
        ("timestamp = '2026-11-01 08:01:00Z'", 6),
        ("timestamp < '2026-11-01 08:00:00Z'", 0),
        ("topic IS NOT NULL AND offset > 9", 3),
    ],
)
def test_a_filter_gives_the_same_rows_with_and_without_pushing(
    spark: SparkSession, broker: BrokerProcess, condition: str, count: int
) -> None:
    pushed = read(spark, broker, "#", pushdown=True).where(condition)
    found = seen(pushed)
    assert len(found) == count
    assert rows_from_source(pushed) == count, "what was excluded has left the source"
    unpushed = read(spark, broker, "#").where(condition)
    assert seen(unpushed) == found
    assert rows_from_source(unpushed) == ALL


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("kind = 'string' AND offset % 2 = 0", 15),
        ("topic = 'lab' OR offset = 1", 12),
        ("topic LIKE '%/b'", 10),
    ],
)
def test_what_is_not_understood_is_left_to_spark(
    spark: SparkSession, broker: BrokerProcess, condition: str, count: int
) -> None:
    rows = read(spark, broker, "#", pushdown=True).where(condition)
    assert len(seen(rows)) == count
    assert rows_from_source(rows) == ALL


@pytest.mark.parametrize(
    ("options", "condition", "offsets"),
    [
        ({"startingTimestamp": "2026-11-01T08:02:00Z"}, "timestamp < '2026-11-01 08:03:00Z'", [3, 7]),
        (
            {"startingTimestamp": "2026-11-01T08:02:00Z"},
            "timestamp >= '2026-11-01 08:01:00Z' AND offset < 5",
            [3, 4],
        ),
        ({"endingTimestamp": "2026-11-01T08:09:00Z"}, "timestamp >= '2026-11-01 08:01:00Z'", [2, 3]),
        ({"endingTimestamp": "2026-11-01T08:01:00Z"}, "timestamp >= '2026-11-01 08:05:00Z'", []),
        ({"startingOffsets": '{"lab": 5}', "endingOffsets": '{"lab": 9}'}, "offset > 6", [7, 8]),
    ],
)
def test_filters_and_options_hold_together(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], condition: str, offsets: list[int]
) -> None:
    for pushdown in (True, False):
        rows = read(spark, broker, "lab", pushdown=pushdown, **options).where(condition)
        assert [row.offset for row in seen(rows)] == offsets


def test_a_filter_holds_for_columns_that_were_not_picked_for_the_result(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = read(spark, broker, "lab", pushdown=True)
    found = rows.where("timestamp = '2026-11-01 08:09:00Z'").select("payload").collect()
    assert [bytes(row.payload) for row in found] == [b"4"]


def test_topics_that_are_excluded_take_no_tasks(spark: SparkSession, broker: BrokerProcess) -> None:
    options = {"maxRecordsPerPartition": 5, "pushdown": True}
    assert read(spark, broker, "#", **options).rdd.getNumPartitions() == 6
    rows = read(spark, broker, "#", **options).where("topic = 'lab' AND offset < 3")
    assert rows.rdd.getNumPartitions() == 1


def test_without_pushing_a_table_can_be_asked_any_number_of_times(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = read(spark, broker, "#")
    assert rows.where("topic = 'lab'").count() == 10
    assert rows.where("offset = 3").count() == 3
    assert rows.count() == ALL
    low, high = rows.where("topic = 'lab' AND offset < 3"), rows.where("topic = 'hall/a' AND offset > 9")
    assert [(row.topic, row.offset) for row in seen(low.union(high))] == [
        ("hall/a", 10),
        ("lab", 1),
        ("lab", 2),
    ]


def test_pushing_that_the_session_does_not_allow_is_told(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = read(spark, broker, "#", pushdown=True).where("offset = 3")
    with setting(spark, PUSHING, "false"), pytest.raises(AnalysisException, match=re.escape(PUSHING)):
        rows.collect()
