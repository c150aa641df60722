"""Continuous queries: SQL from topics to a topic."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.errors import ConfigError
from stafeta.pipeline.continuous import continuous
from stafeta.pipeline.sink_writer import messages
from tests.brokers import BrokerProcess
from tests.pipeline.queries import connect, payloads, published
from tests.pipeline.runners import configured, done_once


def query(folder: Path, text: str, name: str = "query.sql") -> Path:
    (folder / name).write_text(text)
    return folder / name


# --- what is wrong


def test_a_file_that_cannot_be_a_query_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        continuous(tmp_path / "none.sql", "out")
    with pytest.raises(ConfigError, match="is empty: write a SELECT"):
        continuous(query(tmp_path, " \n"), "out")
    with pytest.raises(ConfigError, match="--into: The topic 'a/#' has '#' in it"):
        continuous(query(tmp_path, "SELECT 1"), "a/#")
    (tmp_path / "bytes.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        continuous(tmp_path / "bytes.sql", "out")


def test_a_job_has_the_name_of_its_file_unless_it_is_given_one(tmp_path: Path) -> None:
    assert continuous(query(tmp_path, "SELECT 1", "hot rooms.sql"), "out").name == "hot-rooms"
    assert continuous(query(tmp_path, "SELECT 1"), "out", name="other").name == "other"


def test_what_is_wrong_with_a_statement_ends_the_job_with_its_sentence(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    wrong = {
        "syntax": ("SELECT topic\nFORM messages GROUP\n", "syntax.sql, line 2: Syntax error"),
        "column": ("SELECT topic,\n  numbre\nFROM readings", "column.sql, line 2: A column"),
        "table": ("SELECT * FROM messges", "table.sql, line 1: The table or view `messges` cannot be found"),
        "still": ("SELECT 1 AS one", "still.sql: a continuous query selects from messages or readings"),
        "mode": ("SELECT topic, count(*) AS n FROM readings GROUP BY topic", "watermark"),
    }
    jobs = [continuous(query(tmp_path, text, f"{name}.sql"), "out") for name, (text, _) in wrong.items()]
    run = done_once(spark, configured(broker, tmp_path / "lake"), *jobs)
    for name, (_, sentence) in wrong.items():
        assert run.last(name).state == "failed"
        assert sentence in run.last(name).error
        assert run.last(name).restarts == 0


# --- what comes of it


def test_rows_that_are_messages_stay_and_others_become_objects(spark: SparkSession) -> None:
    plain = spark.sql("SELECT 'a' AS payload, 'int' AS kind")
    assert messages(plain, "out") is plain
    rows = spark.sql(
        "SELECT 'a/b' AS topic, 1.5D AS number, NULL AS nothing, timestamp'2026-11-16 10:00:00Z' AS at"
    )
    (row,) = messages(rows, "out").collect()
    assert json.loads(row.payload) == {
        "topic": "a/b",
        "number": 1.5,
        "nothing": None,
        "at": json.loads(row.payload)["at"],
    }
    assert row.kind == "json"
    (row,) = messages(rows.select("topic", "number"), None).collect()
    assert (row.topic, json.loads(row.payload)) == ("a/b", {"number": 1.5})


def test_rows_go_to_the_topic_once_however_often_it_is_run(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = configured(broker, tmp_path / "lake")
    hot = continuous(
        query(tmp_path, "-- hot\nSELECT topic, number\nFROM readings\nWHERE number > 30;\n", "hot.sql"), "hot"
    )
    loud = continuous(query(tmp_path, "SELECT upper(text) AS payload FROM messages", "loud.sql"), "loud")
    with connect(broker) as connection:
        connection.publish("upb/hall", ["21.5", "31.5"], kind="float")
        connection.publish("upb/name", ["hall"])
    for again in range(2):
        run = done_once(spark, config, hot, loud)
        assert [run.last(name).state for name in ("hot", "loud")] == ["finished", "finished"], run.told
        if not again:
            published(broker, upb__name=["lab"])
    with connect(broker) as connection:  # a view that is not read holds nothing
        holders = {tuple(one.client.split("/")) for one in connection.subscriptions()}
    ((_, _, _, ours, _), _) = holders
    assert holders == {
        ("flight", "pipeline", "hot", ours, "readings"),
        ("flight", "pipeline", "loud", ours, "messages"),
    }
    assert [json.loads(one) for one in payloads(broker, "hot")] == [{"topic": "upb/hall", "number": 31.5}]
    objects = '{"TOPIC":"UPB/HALL","NUMBER":31.5}'
    assert sorted(set(payloads(broker, "loud")) - {objects}) == ["21.5", "31.5", "HALL", "LAB"]
    assert len(payloads(broker, "loud")) == len(set(payloads(broker, "loud")))


def test_windows_are_told_when_the_watermark_has_passed_them(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    text = "SELECT window.start, count(*) AS n FROM readings GROUP BY window(timestamp, '1 second')"
    job = continuous(query(tmp_path, text, "windows.sql"), "windows", watermark=0.0)
    config = configured(broker, tmp_path / "lake")
    with connect(broker) as connection:
        connection.publish("upb/hall", ["1", "2", "3"], kind="int")
        rows = connection.read("upb/hall").to_pylist()
        later = spark.createDataFrame(
            [("9", rows[-1]["timestamp"].timestamp() + 5)], "payload string, at double"
        )
        later = later.selectExpr("payload", "'int' AS kind", "timestamp_seconds(at) AS timestamp")
        later.write.format("stafeta").mode("append").option("broker", connection.address).option(
            "topic", "upb/hall"
        ).save()
    run = done_once(spark, config, job)
    assert run.last("windows").state == "finished", run.last("windows")
    found = [json.loads(one)["n"] for one in payloads(broker, "windows")]
    assert sum(found) == 3
