"""The job deadletter: what is found, where it goes, and that it goes there once."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.config.options import Deadletter, Pipeline
from stafeta.config.options import Lake as LakeSettings
from stafeta.errors import InvalidMessage
from stafeta.message import Kind, check_payload
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.deadletter import JOB, LARGEST, dead, letters
from stafeta.pipeline.jobs.schemas import Schema
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address, connect, payloads
from tests.waiting import PATIENCE

BEGIN = datetime(2026, 11, 16, 8, tzinfo=UTC)
SCHEMA = "topic string, offset bigint, timestamp timestamp, kind string, payload binary"
SAMPLES = {
    "int": [b"7", b"-007", b"7.5", b"", b"7\n", b"\xff", b"\xd9\xa7", b" 7", b"9" * 1000, b"9" * 1001],
    "short_real": [b"7.50", b"7.5", b"7", b"-0.01", b"7.50\n"],
    "float": [b"7", b"7.125", b".5", b"1e3", b"nan", b"-7.5"],
    "string": [b"", b"caf\xc3\xa9", b"caf\xe9", b"\xed\xa0\x80", b"a\x00b"],
    "json": [b"{}", b'{"a": 1, "a": 2}', b"[1,]", b"1 2", b"NaN", b'"\xff"', b"", b'"\\ud800"', b"1e999"],
    "bytes": [b"\xff", b""],
}
LONG = "/".join(["x" * 50] * 5)
DEEP = "/".join(["x"] * 64)


def is_wrong(kind: str, payload: bytes) -> bool:
    try:
        check_payload(Kind.of(kind), payload)
    except InvalidMessage:
        return True
    return False


def test_what_the_doors_would_refuse_is_found_and_nothing_else(spark: SparkSession) -> None:
    rows = [
        (kind, number, BEGIN, kind, payload)
        for kind, samples in SAMPLES.items()
        for number, payload in enumerate(samples)
    ]
    declared = [Schema("int", '{"maximum": 5}'), Schema("bytes", "{}")]
    frame = spark.createDataFrame(rows, SCHEMA)
    found = {(row.kind, row.offset): row.reason for row in dead(frame).collect()}
    expected = {(kind, number) for kind, number, _, _, payload in rows if is_wrong(kind, payload)}
    assert found.keys() == expected
    assert found["int", 2] == "It is not of the kind int."
    assert found["json", 2] == "'[1,]' is not of the kind json."
    found = {(row.kind, row.offset): row.reason for row in dead(frame, declared).collect()}
    assert found.keys() == expected | {("int", 0), ("int", 8), ("bytes", 0), ("bytes", 1)}
    assert found["int", 0] == "$: 7 is greater than the maximum of 5."


def test_a_letter_says_all_and_fits(spark: SparkSession) -> None:
    rows = [
        ("hall/a", 7, BEGIN, "int", b'x"\n', "It is wrong."),
        ("hall/b", 8, BEGIN, "bytes", b"\xff\xfe", "It is wrong."),
        (LONG, 9, BEGIN, "string", b"\x01" * (LARGEST + 1), "It is wrong."),
        (DEEP, 1, BEGIN, "string", b"\xff" * (LARGEST + 2), "It is wrong."),
    ]
    found = letters(spark.createDataFrame(rows, f"{SCHEMA}, reason string")).collect()
    assert [row.topic for row in found] == ["dead/hall/a", "dead/hall/b", "dead", "dead"]
    assert {row.kind for row in found} == {"json"}
    first, second, third, fourth = (json.loads(row.payload) for row in found)
    assert first == {
        "topic": "hall/a",
        "offset": 7,
        "timestamp": "2026-11-16T08:00:00.000000Z",
        "kind": "int",
        "payload": 'x"\n',
        "reason": "It is wrong.",
    }
    assert (second["payload"], second["encoding"]) == (base64.b64encode(b"\xff\xfe").decode(), "base64")
    assert (len(third["payload"]), third["length"]) == (LARGEST, LARGEST + 1)
    assert (len(base64.b64decode(fourth["payload"])), fourth["length"]) == (LARGEST, LARGEST + 2)
    assert all(len(row.payload) < 8 << 20 for row in found)


def test_what_fails_its_schema_goes_to_its_topic_and_to_the_lake_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "schemas.toml").write_text("[[schema]]\ntopics = 'orders/+'\ninline = {required = ['id']}\n")
    config = replace(
        Config(),
        deadletter=Deadletter(schemas=str(tmp_path / "schemas.toml")),
        pipeline=Pipeline(broker=address(broker), batch=4),
        lake=LakeSettings(warehouse=str(tmp_path / "lake")),
    )
    context = Context(spark, config, "deadletter", str(tmp_path / "checkpoint"), once=True)

    def run() -> None:
        (query,) = JOB.start(context)
        try:
            assert query.awaitTermination(PATIENCE), "the job does not end"
        finally:
            query.stop()

    def publish(topic: str, *messages: dict[str, int]) -> None:
        with connect(broker) as connection:
            connection.publish(topic, list(messages))

    another = replace(context, checkpoint=str(tmp_path / "another" / "checkpoint"))
    another.stream()  # of a pipeline that has not begun to read, for which the broker holds everything
    publish("orders/a", {"id": 1}, {"ID": 2}, {"id": 3})
    publish("other", {"x": 1})
    publish("orders/b", {"id": 1})
    run()
    publish("orders/a", {"x": 4}, {"id": 5})
    publish("dead/orders/b", {"x": 4})
    run()
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    broker.restart()
    run()
    told = [json.loads(one) for one in payloads(broker, "dead/orders/a")]
    assert [(one["offset"], one["reason"]) for one in told] == [
        (2, "$: 'id' is a required property."),
        (4, "$: 'id' is a required property."),
    ]
    assert json.loads(told[0]["payload"]) == {"ID": 2}
    kept = context.lake.frame(spark, "dead").orderBy("offset").collect()
    assert [(row.topic, row.offset, row.kind) for row in kept] == [
        ("orders/a", 2, "json"),
        ("orders/a", 4, "json"),
    ]
    assert len(payloads(broker, "orders/a")) == 5, "what is wrong stays where it is, too"
    with connect(broker) as connection:
        assert {one.topic for one in connection.topics("dead/#")} == {"dead/orders/a", "dead/orders/b"}
        assert len(payloads(broker, "dead/orders/b")) == 1
        assert connection.cursors("#", name=context.durable)["orders/a"] > 1
        assert connection.cursors("#", name=another.durable)["orders/a"] == 1
