"""Writing rows to topics in batch: what rows may be, what becomes of them, and what is told of those that may not."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from stafeta.errors import InvalidMessage, InvalidName
from stafeta.pipeline.connector.options import WriteOptions
from stafeta.pipeline.connector.sink import BatchSink
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, in_background, payloads, told, write
from tests.waiting import wait_until

LOOK = 0.01  # seconds between two
EIGHT = datetime(2026, 11, 16, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests here, each of which has topics of its own."""
    keeping = ("--set", 'topics."#".keep=36500d')
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *keeping, doors=("flight",)) as process:
        yield process


def stored(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic."""
    with connect(broker) as connection:
        return connection.read(topic, columns=["kind", "payload", "timestamp", "producer"]).to_pylist()


def topics(broker: BrokerProcess, filter_: str) -> dict[str, int]:
    """How many messages are to be seen."""
    with connect(broker) as connection:
        return {one.topic: one.rows for one in connection.topics(filter_)}


# --- what is wrong


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("payload string, size long", "The column 'size' is none that a message has"),
        ("payload string, offset long", "The column 'offset' is none that a message has"),
        ("payload long", "The column 'payload' is of the type bigint; cast it to string or binary."),
        ("value double", "The column 'value' is of the type double; cast it to string or binary."),
        ("payload string, topic binary", "The column 'topic' is of the type binary; cast it to string."),
        ("payload string, kind int", "The column 'kind' is of the type int; cast it to string."),
        (
            "payload string, timestamp string",
            "The column 'timestamp' is of the type string; cast it to timestamp.",
        ),
        ("payload string, value string", "both a column 'payload' and a column 'value'"),
        ("topic string", "There is no column 'payload' or 'value' among topic."),
        ("payload string, kind string", "Name the topic, by option('topic', …) or in a column 'topic'."),
    ],
)
def test_a_column_that_a_message_cannot_have_is_named(
    spark: SparkSession, broker: BrokerProcess, schema: str, sentence: str
) -> None:
    options = {} if sentence.startswith("Name the topic") else {"topic": "wrong"}
    with told(sentence):
        write(spark.createDataFrame([], schema), broker, **options)
    assert not topics(broker, "wrong")


@pytest.mark.parametrize("column", ["payload", "topic", "kind", "timestamp"])
def test_a_null_is_an_error_that_names_its_column(broker: BrokerProcess, column: str) -> None:
    sink = BatchSink(WriteOptions.of({"broker": address(broker)}, streaming=False))
    row = {"topic": "nulls", "payload": "1", "kind": "int", "timestamp": EIGHT}
    with pytest.raises(InvalidMessage, match=f"The column {column} has a null in it"):
        sink.write(iter([pa.RecordBatch.from_pylist([row, row | {column: None}])]))
    assert not topics(broker, "nulls")


def test_a_topic_in_a_row_that_is_no_name_is_told(broker: BrokerProcess) -> None:
    sink = BatchSink(WriteOptions.of({"broker": address(broker)}, streaming=False))
    with pytest.raises(InvalidName, match=r"The topic 'x/\+' has '\+' in it"):
        sink.write(iter([pa.record_batch({"topic": ["x", "x/+"], "value": ["1", "2"]})]))
    assert not topics(broker, "x")


def test_of_a_write_with_one_wrong_payload_nothing_is_seen(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.createDataFrame([(str(n) if n != 17 else "seventeen",) for n in range(20)], "value string")
    with told("'seventeen' is not of the kind int."):
        write(rows.repartition(3), broker, topic="mistaken", kind="int")
    assert not topics(broker, "mistaken")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "integer"}, "The option 'kind': 'integer' is no kind"),
        ({"topik": "x"}, "There is no option 'topik' for writing; did you mean 'topic'?"),
        ({"topic": "x/#"}, "The option 'topic': The topic 'x/#' has '#' in it"),
        ({"topic": "x", "txnAppId": "app"}, "'txnAppId' and 'txnVersion' go together"),
    ],
)
def test_a_wrong_option_is_a_sentence(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], sentence: str
) -> None:
    with told(sentence):
        write(spark.createDataFrame([("1",)], "value string"), broker, **options)


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.createDataFrame([("1",)], "value string").write.format("stafeta").mode("overwrite")
    with told("A topic cannot be overwritten, only added to: write with mode('append')."):
        rows.option("topic", "over").save()


# --- what is written


def test_rows_go_to_the_topics_that_they_name(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.createDataFrame(
        [("a", "1"), ("b", "2"), ("a", "3")], "topic string, payload string"
    ).coalesce(1)
    write(rows.selectExpr("concat('named/', topic) AS topic", "payload"), broker)
    assert payloads(broker, "named/a") == ["1", "3"]
    assert payloads(broker, "named/b") == ["2"]
    write(rows, broker, topic="option")
    assert payloads(broker, "option") == ["1", "2", "3"], "the option goes before the column"
    assert not topics(broker, "a")


def test_text_and_bytes_are_of_their_kinds_unless_another_is_said(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    text = spark.createDataFrame([("21.5",)], "value string")
    write(text, broker, topic="kinds")
    write(text.selectExpr("CAST(value AS BINARY) AS payload"), broker, topic="kinds")
    write(text, broker, topic="kinds", kind="float")
    write(
        spark.createDataFrame([("1", "int"), ("{}", "json")], "value string, kind string").coalesce(1),
        broker,
        topic="kinds",
    )
    write(
        spark.createDataFrame([("2", "string")], "value string, kind string"),
        broker,
        topic="kinds",
        kind="int",
    )
    found = [(one["payload"].decode(), one["kind"]) for one in stored(broker, "kinds")]
    assert found == [
        ("21.5", "string"),
        ("21.5", "bytes"),
        ("21.5", "float"),
        ("1", "int"),
        ("{}", "json"),
        ("2", "int"),
    ], "the option is for all rows"


def test_times_are_those_of_the_rows_or_now(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.createDataFrame([("1", EIGHT)], "value string, timestamp timestamp")
    write(rows, broker, topic="times")
    before = datetime.now(UTC)
    write(rows.select("value"), broker, topic="times")
    first, second = (one["timestamp"] for one in stored(broker, "times"))
    assert first == EIGHT
    assert before <= second <= datetime.now(UTC)


def test_what_was_read_is_written_again_as_it_was(spark: SparkSession, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        connection.publish("original", [b"\x00\xff", b""], kind="bytes")
        connection.publish("original", ["0.10"], kind="float")
        place = connection.address
    rows = spark.read.format("stafeta").option("broker", place).option("subscribe", "original").load()
    write(rows.select("payload", "kind", "timestamp"), broker, topic="again")
    one, two = (
        [(m["kind"], m["payload"], m["timestamp"]) for m in stored(broker, t)] for t in ("original", "again")
    )
    assert one == two


def test_no_rows_are_no_messages(spark: SparkSession, broker: BrokerProcess) -> None:
    write(spark.createDataFrame([], "value string"), broker, topic="nothing")
    assert not topics(broker, "nothing")


def test_many_topics_are_written_at_once(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(2000, numPartitions=2)
    write(rows.selectExpr("concat('many/', id % 500) AS topic", "CAST(id AS STRING) AS value"), broker)
    assert topics(broker, "many/+") == {f"many/{n}": 4 for n in range(500)}
    assert sorted(payloads(broker, "many/7"), key=int) == ["7", "507", "1007", "1507"]


# --- order, and all at once


def reversed_(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lets the second partition be done before the first begins."""
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0:
        wait_until(Path(folder, "second").exists)
    yield from batches
    if context.partitionId() == 1:
        Path(folder, "second").touch()


def test_rows_keep_their_order_and_partitions_follow_each_other(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    rows = spark.range(1000, numPartitions=5).mapInArrow(
        lambda batches: reversed_(folder, batches), "id long"
    )
    write(rows.selectExpr("CAST(id AS STRING) AS value"), broker, topic="order")
    assert payloads(broker, "order") == [str(n) for n in range(1000)]


def test_a_write_is_seen_whole_or_not_at_all(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    rows = spark.range(4000, numPartitions=4).mapInArrow(
        lambda batches: reversed_(folder, batches), "id long"
    )
    rows = rows.selectExpr("concat('whole/', id % 2) AS topic", "CAST(id AS STRING) AS value")
    looks: list[dict[str, int]] = []
    written = Event()

    def look() -> None:
        with connect(broker) as connection:
            while not written.wait(LOOK):
                looks.append({one.topic: one.rows for one in connection.topics("whole/+") if one.rows})

    with in_background(look):
        try:
            write(rows, broker)
        finally:
            written.set()
    whole = {"whole/0": 2000, "whole/1": 2000}
    assert looks[0] == {}, "it has looked too late"
    assert [one for one in looks if one not in ({}, whole)] == []
    assert topics(broker, "whole/+") == whole
