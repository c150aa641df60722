"""One table over lake and log: no gap and no overlap, whatever goes on behind it."""

import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from stafeta.config import Config
from stafeta.errors import ConfigError
from stafeta.pipeline import messages, readings, register
from stafeta.pipeline import view as looked
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import archive
from stafeta.pipeline.view import COLUMNS, READINGS
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.lakes import Archived
from tests.pipeline.queries import (
    connect,
    dropped,
    forgetful,
    in_background,
    numbered,
    published,
    read,
    seen,
)
from tests.waiting import PATIENCE, wait_until

__all__ = ["forgetful"]


@pytest.fixture
def config(broker: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(broker, tmp_path)


@pytest.fixture
def archived(spark: SparkSession, broker: BrokerProcess, config: Config) -> Archived:
    return Archived(spark, broker, config)


def offsets(rows: DataFrame) -> dict[str, list[int]]:
    found = rows.groupBy("topic").agg(sf.sort_array(sf.collect_list("offset")).alias("offsets"))
    return {row["topic"]: list(row["offsets"]) for row in found.collect()}


def test_a_column_that_is_not_there_is_told(spark: SparkSession, config: Config) -> None:
    with pytest.raises(ConfigError, match="There is no column 'nummer'; there are topic, offset,"):
        messages(spark, config, columns=["topic", "nummer"])
    with pytest.raises(ConfigError, match=r"There is no column 'text'; there are .*number, decimal"):
        readings(spark, config, columns=["text"])


def test_spark_does_not_take_it_for_so_small_that_a_join_sends_all_of_it_to_each_task(
    spark: SparkSession, broker: BrokerProcess, config: Config
) -> None:
    published(broker, a=numbered(1, 9))
    rows: Any = messages(spark, config, columns=["topic", "offset"])
    again = rows.join(messages(spark, config, columns=["topic", "offset"]), ["topic", "offset"])
    assert "Broadcast" not in again._jdf.queryExecution().executedPlan().toString()
    assert again.count() == 9


def test_without_a_lake_it_is_the_log_and_without_the_log_the_lake(
    spark: SparkSession, broker: BrokerProcess, config: Config, archived: Archived, tmp_path: Path
) -> None:
    assert messages(spark, config).count() == 0  # of an empty broker
    published(broker, a=numbered(1, 3))
    assert offsets(messages(spark, config)) == {"a": [1, 2, 3]}
    assert not (tmp_path / "lake").exists()
    register(spark, config, log=False)
    assert spark.table("messages").count() == spark.table("readings").count() == 0
    assert not (tmp_path / "lake").exists()

    archived.take("a", 1, 3)
    broker.stop()
    register(spark, config, log=False)
    assert offsets(spark.table("messages")) == {"a": [1, 2]}
    assert not spark.catalog.tableExists("rollups")


def test_it_is_the_lake_up_to_what_is_archived_and_the_log_after_it(
    spark: SparkSession, broker: BrokerProcess, config: Config, archived: Archived
) -> None:
    published(broker, upb__hall=numbered(1, 6), upb__lab=numbered(1, 4), other=numbered(1, 5), late=["1"])
    archived.take("upb/hall", 1, 4)
    archived.take("upb/lab", 1, 5)  # all of it
    archived.take("other", 1, 3)
    one = messages(spark, config)
    published(broker, upb__lab=["5"])
    assert seen(one) == seen(read(spark, broker, "#"))  # as it was when it was first used
    assert one.columns == list(COLUMNS)
    some = {
        filters: offsets(messages(spark, config, subscribe=filters, columns=["offset", "topic"]))
        for filters in ("upb/#", "other, +", "upb/hall", "nobody/#")
    }
    hall, lab, other = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]
    assert some == {
        "upb/#": {"upb/hall": hall, "upb/lab": lab},
        "other, +": {"other": other, "late": [1]},
        "upb/hall": {"upb/hall": hall},
        "nobody/#": {},
    }
    register(spark, config, columns=["topic", "offset"])
    assert offsets(spark.table("messages"))["upb/lab"] == lab


ODD: list[tuple[str, bytes]] = [
    ("int", b"-0"),
    ("int", b"007"),
    ("int", b"9" * 38),
    ("int", b"9" * 20),
    ("int", b"-" + b"9" * 21),
    ("float", b"-0.0"),
    ("float", b"9." + b"0" * 57),
    ("float", b"0" * 300 + b"1.5"),
    ("float", b"-" + b"9" * 20 + b"." + b"9" * 18),
    ("float", b"0.1234567890123456789"),
    ("float", b"0." + b"0" * 330 + b"1"),
    ("float", b"9007199254740993"),
    ("float", b"9" * 400),
    ("float", b"0.1"),
    ("short_real", b"-00.10"),
    ("string", "ștafetă 12".encode()),
    ("string", b"12"),
    ("string", b""),
    ("json", b'{"a": [1, 2.50]}'),
    ("bytes", b"\xff\x00"),
    ("bytes", b"12"),
]


def test_its_values_are_those_that_the_connector_decodes(
    spark: SparkSession, broker: BrokerProcess, config: Config, archived: Archived
) -> None:
    data = pa.table(
        {"payload": pa.array([payload for _, payload in ODD], pa.binary()), "kind": [kind for kind, _ in ODD]}
    )
    with connect(broker) as connection:
        connection.publish("odd", data)
        connection.publish("odd", data)
    archived.take("odd", 1, len(ODD) + 1)  # one half is in the lake, the other in the log
    columns = ",".join([*COLUMNS, "number", "decimal"])
    decoded = read(spark, broker, "odd", columns=columns).orderBy("offset").collect()
    found = messages(spark, config).orderBy("offset").collect()
    assert [tuple(row) for row in found] == [tuple(row)[: len(COLUMNS)] for row in decoded]
    numbers = readings(spark, config).orderBy("offset").collect()
    assert numbers[0].__fields__ == list(READINGS)
    wanted = [row for row in decoded if row["kind"] in ("int", "short_real", "float")]
    assert [_values(row) for row in numbers] == [_values(row) for row in wanted]
    for name in ("number", "decimal"):  # where columns are named, a task decodes them
        some = readings(spark, config, columns=["offset", name]).orderBy("offset").collect()
        assert [(row["offset"], repr(row[name])) for row in some] == [
            (row["offset"], repr(row[name])) for row in wanted
        ]


def _values(row: Any) -> tuple[int, str, Decimal | None]:
    return row["offset"], repr(row["number"]), row["decimal"]


def test_a_gap_that_the_log_has_is_a_gap(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has archived what the broker was allowed to drop."""
    config = config_of(forgetful, tmp_path)
    with connect(forgetful) as connection:
        connection.hold("a", name="somebody")
        connection.publish("a", numbered(1, 9))
        Archived(spark, forgetful, config).take("a", 1, 4)
        dropped(connection, "a", 7)
    assert offsets(messages(spark, config)) == {"a": [1, 2, 3, 7, 8, 9]}
    assert "The messages 4 to 6 of topic a are gone." in caplog.text


def test_what_is_gone_when_it_is_read_is_told(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """The query took longer than the grace period."""
    config = config_of(forgetful, tmp_path)
    with connect(forgetful) as connection:
        for topic in "ab":
            connection.hold(topic, name="somebody")
            connection.publish(topic, numbered(1, 5))
        archive_of = Archived(spark, forgetful, config)
        archive_of.take("a", 1, 3)
        late = [messages(spark, config, subscribe=topic) for topic in "ab"]
        archive_of.take("a", 3, 6)
        archive_of.take("b", 1, 6)
        for topic in "ab":
            dropped(connection, topic, 6)
    for rows, sentence in zip(
        late, ("messages 3 to 5 of topic 'a'", "messages 1 to 5 of topic 'b'"), strict=True
    ):
        with pytest.raises(Exception, match=sentence):
            rows.count()
    assert offsets(messages(spark, config)) == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 5]}


def test_a_log_that_was_replaced_doubles_nothing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path)
    published(broker, a=numbered(1, 5))
    Archived(spark, broker, config).take("a", 1, 6)
    with BrokerProcess(tmp_path / "second", doors=("flight",)) as second:
        with connect(second) as connection:
            connection.hold("#", name="somebody")
        published(second, a=["another"], b=["new"])
        rows = messages(spark, config_of(second, tmp_path))
        assert [(one.topic, one.payload) for one in seen(rows)] == [
            *(("a", str(number)) for number in range(1, 6)),
            ("b", "new"),
        ]


# --- where lake and log do not simply follow on one another


def test_what_the_lake_lacks_is_read_from_the_log_wherever_it_lies(
    spark: SparkSession, broker: BrokerProcess, config: Config, archived: Archived
) -> None:
    published(broker, a=numbered(1, 12), b=numbered(1, 4), whole=numbered(1, 3))
    archived.take("a", 1, 3)
    archived.take("a", 5, 7)
    archived.take("a", 9, 11)
    archived.take("b", 3, 5)  # without its beginning
    archived.take("whole", 1, 4)
    assert seen(messages(spark, config)) == seen(read(spark, broker, "#"))
    assert sorted(row["text"] for row in messages(spark, config, columns=["text"]).collect()) == sorted(
        numbered(1, 12) + numbered(1, 4) + numbered(1, 3)
    )
    assert offsets(messages(spark, config, subscribe="b")) == {"b": [1, 2, 3, 4]}


def test_a_topic_that_comes_between_the_looks_at_log_and_lake_is_there_once(
    spark: SparkSession,
    broker: BrokerProcess,
    config: Config,
    archived: Archived,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published(broker, old=numbered(1, 3), other__old=["1"])
    look = looked._topics

    def born(*given: Any) -> Any:
        found = look(*given)
        if "new" not in found:
            published(broker, new=numbered(1, 4), other__new=["1"])
            archived.take("new", 1, 4)
            archived.take("other/new", 1, 2)
        return found

    monkeypatch.setattr(looked, "_topics", born)
    assert offsets(messages(spark, config, subscribe="+")) == {"old": [1, 2, 3], "new": [1, 2, 3, 4]}


# --- while everything goes on


def test_there_is_no_gap_and_no_overlap_while_archive_and_collection_run(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """Old and new topics; what was published before a look is there. A look that takes longer than the broker keeps
    what is archived may fail, and is repeated."""
    config = config_of(forgetful, tmp_path, grace=2.0, trigger=0.5)
    stop = threading.Event()
    sent: dict[str, int] = {}

    def produce() -> None:
        with connect(forgetful) as connection:
            round_ = 0
            while not stop.wait(0.02):
                for topic in ("steady/a", "steady/b", f"new/{round_ // 25}"):
                    connection.publish(topic, numbered(1, 5))
                    sent[topic] = sent.get(topic, 0) + 5
                round_ += 1

    context = Context(spark, config, "archive", str(tmp_path / "checkpoint"))
    (query,) = archive.JOB.start(context)
    looks, deadline = 0, time.monotonic() + PATIENCE
    try:
        with in_background(produce):
            try:
                while looks < 6 and time.monotonic() < deadline:
                    before = dict(sent)
                    try:
                        found = offsets(messages(spark, config, columns=["topic", "offset"]))
                    except Exception as error:  # noqa: BLE001 - Spark's, of whatever class
                        assert "are gone before they were read" in str(error)  # noqa: PT017
                        continue
                    looks += 1
                    for topic, some in found.items():
                        assert some == list(range(1, len(some) + 1)), topic
                    assert all(len(found.get(topic, [])) >= count for topic, count in before.items())
            finally:
                stop.set()
        assert looks == 6
        assert query.isActive
        with connect(forgetful) as connection:
            # Something is collected.
            wait_until(lambda: any(one.first > 1 for one in connection.topics("steady/#")))
    finally:
        query.stop()
    assert offsets(messages(spark, config)) == {
        topic: list(range(1, count + 1)) for topic, count in sent.items()
    }
