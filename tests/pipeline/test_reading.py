"""Reading topics in batch: columns, where it begins and ends, and tasks."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stafeta.pipeline.connector.source import DefaultSource
from tests.brokers import BrokerProcess
from tests.pipeline.queries import Seen, address, connect, numbered, published, read, seen, told

EIGHT = datetime(2026, 11, 1, 8, tzinfo=UTC)
PLAIN = ["topic", "offset", "timestamp", "producer", "source", "kind", "payload"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests here, which only read from it."""
    keeping = ("--set", 'topics."#".keep=100d')
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *keeping, doors=("flight",)) as process:
        with connect(process) as connection:
            connection.publish("hall/a", numbered(1, 10))
            connection.publish("hall/b", numbered(1, 5))
            connection.publish("lab/a", numbered(1, 3))
            connection.hold("empty", name="nobody")
            with connection.producer("kinds", name="importer") as producer:
                producer.write(
                    pa.table(
                        {
                            "payload": [b"-12", b"2.50", b"0.1", "grün".encode(), b'{"a": 1}', b"\xff"],
                            "kind": ["int", "short_real", "float", "string", "json", "bytes"],
                        }
                    )
                )
            times = [EIGHT + timedelta(minutes=minute) for minute in range(10)]
            connection.publish(
                "times",
                pa.table(
                    {"payload": numbered(1, 10), "timestamp": pa.array(times, pa.timestamp("us", "UTC"))}
                ),
            )
        yield process


def of(topic: str, first: int, last: int) -> list[Seen]:
    """The messages of a topic whose payloads are their offsets, both ends included."""
    return [Seen(topic, number, str(number)) for number in range(first, last + 1)]


# --- what is wrong


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({"startingOffsets": "first"}, "The option 'startingOffsets': 'first' is neither"),
        ({"columns": "topics"}, "There is no column 'topics'; there are topic, offset, timestamp, "),
        ({"columns": "topic,topic"}, "The option 'columns' names a column twice: topic, topic."),
        ({"endingOffsets": '{"hall/a": 12}'}, "asks for topic 'hall/a' up to 12; it ends at 11."),
        ({"durable": "x"}, "The option 'durable' does not count here: it is for streams."),
        ({"broker": "http://127.0.0.1"}, "http://127.0.0.1"),
    ],
)
def test_what_is_wrong_reaches_the_user_as_a_sentence(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], sentence: str
) -> None:
    with told(sentence):
        read(spark, broker, "hall/a", **options).collect()


def test_a_schema_that_a_topic_does_not_have_is_told(spark: SparkSession, broker: BrokerProcess) -> None:
    reader = spark.read.format("stafeta").option("subscribe", "hall/a")
    with told("A topic has no column 'size'; there are topic, offset, "):
        reader.schema("topic string, size long").load().collect()
    with told("The column 'offset' is of the type bigint, not string; read it as it is and cast it."):
        reader.schema("offset string").load().collect()


# --- columns


def test_the_columns_are_those_of_the_page(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = read(spark, broker, "kinds")
    assert rows.dtypes == list(
        zip(PLAIN, ["string", "bigint", "timestamp", "string", "string", "string", "binary"], strict=True)
    )
    found = rows.orderBy("offset").collect()
    assert [row.kind for row in found] == ["int", "short_real", "float", "string", "json", "bytes"]
    assert [bytes(row.payload) for row in found][3:] == ["grün".encode(), b'{"a": 1}', b"\xff"]
    assert {(row.topic, row.producer) for row in found} == {("kinds", "flight/importer")}
    assert all(row.source.startswith("127.0.0.1:") for row in found)
    # A datetime that Spark gives has no zone, and is in this machine's.
    ages = [datetime.now(UTC) - row.timestamp.astimezone(UTC) for row in found]
    assert all(timedelta(0) <= age < timedelta(minutes=10) for age in ages)


def test_decode_gives_numbers_and_text(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = read(spark, broker, "kinds", decode=True)
    assert rows.dtypes[7:] == [("number", "double"), ("decimal", "decimal(38,18)"), ("text", "string")]
    found = rows.orderBy("offset").collect()
    assert [row.number for row in found] == [-12.0, 2.5, 0.1, None, None, None]
    assert [row.decimal for row in found[:3]] == [Decimal(-12), Decimal("2.5"), Decimal("0.1")]
    assert [row.text for row in found] == ["-12", "2.50", "0.1", "grün", '{"a": 1}', None]


def test_columns_are_picked_in_the_order_in_which_they_are_named(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = read(spark, broker, "kinds", columns="number, offset", decode=True)
    assert rows.columns == ["number", "offset"]
    assert [tuple(row) for row in rows.collect()][:2] == [(-12.0, 1), (2.5, 2)]


def test_a_schema_of_the_users_own_picks_columns_too(spark: SparkSession, broker: BrokerProcess) -> None:
    reader = spark.read.format("stafeta").schema("text string, offset long").option("subscribe", "kinds")
    rows = reader.option("broker", address(broker)).load()
    assert [tuple(row) for row in rows.collect()][:2] == [("-12", 1), ("2.50", 2)]


# --- which topics


def test_several_filters_give_each_message_once(spark: SparkSession, broker: BrokerProcess) -> None:
    found = seen(read(spark, broker, "hall/+, lab/a, hall/#"))
    assert found == [*of("hall/a", 1, 10), *of("hall/b", 1, 5), *of("lab/a", 1, 3)]


@pytest.mark.parametrize("subscribe", ["nothing/#", "empty", "nothing"])
def test_topics_with_nothing_in_them_are_an_empty_table(
    spark: SparkSession, broker: BrokerProcess, subscribe: str
) -> None:
    rows = read(spark, broker, subscribe)
    assert rows.columns == PLAIN
    assert rows.collect() == []


# --- where it begins and ends


@pytest.mark.parametrize(
    ("start", "end", "a", "b"),
    [
        ("earliest", "latest", (1, 10), (1, 5)),
        ("latest", "latest", (1, 0), (1, 0)),
        ("earliest", "earliest", (1, 0), (1, 0)),
        ({"hall/a": 4}, {"hall/a": 7}, (4, 6), (1, 5)),
        ({"hall/a": -1, "hall/b": -2}, {"hall/b": 3}, (1, 0), (1, 2)),
        ({"hall/a": "earliest", "hall/b": "latest"}, {"hall/a": 11, "hall/b": "latest"}, (1, 10), (1, 0)),
        ({"hall/a": 7}, {"hall/a": 7, "hall/b": -2}, (1, 0), (1, 0)),
        ({"hall/a": 8}, {"hall/a": 4}, (1, 0), (1, 5)),
        ({"hall/a": 99}, "latest", (1, 0), (1, 5)),
    ],
)
def test_offsets_say_where_to_begin_and_end(
    spark: SparkSession,
    broker: BrokerProcess,
    start: object,
    end: object,
    a: tuple[int, int],
    b: tuple[int, int],
) -> None:
    start, end = (one if isinstance(one, str) else json.dumps(one) for one in (start, end))
    rows = read(spark, broker, "hall/+", startingOffsets=start, endingOffsets=end)
    assert seen(rows) == of("hall/a", *a) + of("hall/b", *b)


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingTimestamp": "2026-11-01T08:03:00Z"}, 4, 10),
        ({"startingTimestamp": "2026-11-01T08:03:00.000001Z"}, 5, 10),
        ({"endingTimestamp": "2026-11-01T10:03:00+02:00"}, 1, 3),
        (
            {
                "startingTimestamp": int(EIGHT.timestamp()) * 1000 + 60_000,
                "endingTimestamp": "2026-11-01T08:04:00Z",
            },
            2,
            4,
        ),
        ({"startingTimestamp": "2026-11-01T08:05:00Z", "startingOffsets": "latest"}, 6, 10),
        ({"startingOffsets": '{"times": 3}', "endingTimestamp": "2026-11-01T08:04:00Z"}, 3, 4),
        ({"startingTimestamp": "2026-11-01T08:05:00Z", "endingOffsets": '{"times": 8}'}, 6, 7),
        ({"startingTimestamp": "2026-11-01T09:00:00Z"}, 1, 0),
        ({"endingTimestamp": "2026-11-01T08:00:00Z"}, 1, 0),
        ({"startingTimestamp": "2026-11-01T08:05:00Z", "endingTimestamp": "2026-11-01T08:01:00Z"}, 1, 0),
    ],
)
def test_times_say_where_to_begin_and_end(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, object], first: int, last: int
) -> None:
    assert seen(read(spark, broker, "times", **options)) == of("times", first, last)


def test_a_table_is_what_was_there_when_it_was_first_asked(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    published(broker, growing=numbered(1, 3))
    rows = read(spark, broker, "growing")
    assert rows.count() == 3
    published(broker, growing=["4"])
    assert rows.count() == 3
    assert read(spark, broker, "growing").count() == 4


# --- tasks


def partitions(rows: DataFrame) -> int:
    return rows.rdd.getNumPartitions()


def test_small_topics_are_read_by_one_task_unless_more_are_asked_for(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    assert partitions(read(spark, broker, "#")) == 1
    assert partitions(read(spark, broker, "hall/+", minPartitions=4)) >= 4
    assert partitions(read(spark, broker, "lab/a", minPartitions=50)) == 3, "no more than messages"


def test_a_task_has_no_more_rows_than_it_may_and_they_are_in_order(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = read(spark, broker, "hall/a", maxRecordsPerPartition=4, columns="offset")
    assert rows.rdd.map(lambda row: row.offset).glom().collect() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_batches_have_no_more_rows_than_they_may(broker: BrokerProcess) -> None:
    source = DefaultSource({"broker": address(broker), "subscribe": "hall/+", "batchRows": "3"})
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert max(batch.num_rows for batch in batches) == 3
    assert sum(batch.num_rows for batch in batches) == 15
