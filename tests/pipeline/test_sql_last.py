"""Statements on the last messages of a topic: the same rows as of all messages, and those before are not read."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.pipeline.sql.last import last_of
from stafeta.pipeline.view import register
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import connect
from tests.pipeline.statements import Asked, ask

__all__ = ["ask"]

ROWS = 1500
# Each with the topic and the number of rows that it asks for, and whether each message of the topic is a row.
LAST = {
    "SELECT * FROM messages WHERE topic = 'a' ORDER BY offset DESC LIMIT 3": ("a", 3, True),
    "SELECT text FROM messages WHERE 'b' = topic ORDER BY offset DESC, text LIMIT 1": ("b", 1, True),
    "SELECT number FROM readings WHERE topic = 'a' ORDER BY offset DESC LIMIT 5": ("a", 5, False),
    "SELECT offset + 1 AS o, text FROM (SELECT * FROM messages WHERE topic = 'a') m WHERE kind = 'int' "
    "ORDER BY m.offset DESC LIMIT 2": ("a", 2, False),
    "SELECT max_by(text, offset) FROM messages WHERE topic = 'a'": ("a", 1, True),
    "SELECT topic, max_by(number, offset) AS last, max(offset) + 1 FROM readings WHERE topic = 'a' GROUP BY topic": (
        "a",
        1,
        False,
    ),
    "SELECT max_by(number, offset) FROM readings WHERE topic = 'c'": ("c", 1, False),
    "SELECT offset FROM readings WHERE topic = 'b' AND offset < 40 ORDER BY offset DESC LIMIT 2": (
        "b",
        2,
        False,
    ),
    "SELECT number FROM readings WHERE topic = 'a' AND number < 10 ORDER BY offset DESC LIMIT 700": (
        "a",
        700,
        False,
    ),
}
OTHERS = (
    "SELECT text FROM messages WHERE topic = 'a' ORDER BY offset LIMIT 3",
    "SELECT text FROM messages WHERE topic = 'a' ORDER BY text, offset DESC LIMIT 3",
    "SELECT text FROM messages WHERE topic > 'a' ORDER BY offset DESC, text LIMIT 3",
    "SELECT text FROM messages WHERE topic = 'a' OR offset = 7 ORDER BY offset DESC, text LIMIT 3",
    "SELECT -offset AS offset FROM messages WHERE topic = 'a' ORDER BY 1 DESC LIMIT 3",
    "SELECT text FROM (SELECT text, -offset AS offset FROM messages WHERE topic = 'a') ORDER BY offset DESC LIMIT 3",
    "SELECT min(offset), max(offset) FROM messages WHERE topic = 'a'",
    "SELECT max_by(text, offset), count(*) FROM messages WHERE topic = 'a'",
    "SELECT max_by(text, -offset) FROM messages WHERE topic = 'a'",
    "SELECT max_by(text, offset) FILTER (WHERE text < '5') FROM messages WHERE topic = 'a'",
    "SELECT kind, max_by(text, offset) FROM messages WHERE topic = 'a' GROUP BY kind ORDER BY kind",
    "SELECT 1 FROM messages WHERE topic = 'a' AND offset < (SELECT 9 LIMIT 1) ORDER BY offset DESC LIMIT 2",
    "SELECT text, lag(text) OVER (ORDER BY offset) FROM messages WHERE topic = 'a' ORDER BY offset DESC LIMIT 1",
    "SELECT text FROM global_temp.messages WHERE topic = 'a' ORDER BY offset DESC LIMIT 3",
)
BACKWARDS = "CREATE GLOBAL TEMPORARY VIEW messages AS SELECT topic, text, -offset AS offset FROM messages"


@pytest.fixture
def config(broker: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(broker, tmp_path)


def test_the_last_messages_of_a_topic_are_read_alone_and_are_the_same(
    spark: SparkSession, broker: BrokerProcess, config: Config, ask: Asked
) -> None:
    drawn = random.Random(5)
    numbers = [str(drawn.randrange(20)) for _ in range(ROWS)]
    with connect(broker) as connection:
        for topic in ("a", "b"):
            kinds = ["int"] * (ROWS - 4) + ["string"] * 4
            connection.publish(topic, pa.table({"payload": numbers, "kind": kinds}))
        connection.publish("c", numbers)  # no readings
    Archive(spark, broker, config).take("a", ROWS - 2)
    Archive(spark, broker, config).take("b", 500)
    register(spark, config)
    spark.sql(BACKWARDS)
    frames = {statement: spark.sql(statement) for statement in (*LAST, *OTHERS)}
    expected = {statement: list(map(tuple, frame.collect())) for statement, frame in frames.items()}
    found = {statement: last_of(frame, statement) for statement, frame in frames.items()}
    assert {one: asked and (asked.topic, asked.rows, asked.every) for one, asked in found.items()} == (
        LAST | dict.fromkeys(OTHERS)
    )
    for statement, rows in expected.items():
        assert _plain(ask(statement)) == _plain(rows), statement

    late = f"assert_true(offset > {ROWS} - 1100) IS NULL"
    checked = f"SELECT number FROM readings WHERE topic = '{{}}' AND {late} ORDER BY offset DESC LIMIT 5"
    for topic in ("a", "b"):
        assert len(ask(checked.format(topic))) == 5


def _plain(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Without times, which come with a zone or without."""
    return [
        tuple(bytes(one) if isinstance(one, bytearray) else one for one in row if not hasattr(one, "tzinfo"))
        for row in rows
    ]
