"""Statements on topics and offsets alone: no message is read, and the rows are those of all messages."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.pipeline.view import UNKNOWN, Stored, register
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.lakes import Archived
from tests.pipeline.queries import connect, dropped, forgetful, numbered
from tests.pipeline.statements import Asked, ask

__all__ = ["ask", "forgetful"]

KNOWN = (
    "SELECT count(*) FROM messages",
    "select count( 1 ) AS n from messages where topic like '%a%'",
    "SELECT topic, count(*), min(offset), max(offset) FROM messages GROUP BY topic ORDER BY topic",
    "SELECT max(offset) FROM messages WHERE topic = 'behind' AND offset < 8",
    "SELECT count(DISTINCT topic) FROM messages",
    "SELECT m.topic, m.offset FROM messages m WHERE offset > (SELECT avg(offset) FROM messages) ORDER BY 1, 2",
    "SELECT count(*) FROM messages a JOIN messages b USING (topic, offset)",
    "SELECT (SELECT count(*) FROM messages) + 1",
    "SELECT count(*) FROM mine, messages",
    "SELECT sum(n) FROM (SELECT count(*) AS n FROM messages GROUP BY topic HAVING max(offset) > 4)",
)
OTHERS = (
    "SELECT count(counter) FROM messages",
    "SELECT * FROM messages ORDER BY topic, offset",
    "SELECT count(DISTINCT struct(*)) FROM messages",
    "SELECT count(*) FROM (SELECT DISTINCT topic, kind FROM messages)",
    "SELECT count(*) FROM messages WHERE text = '3'",
    "SELECT count(*) FROM messages, readings",
    "SELECT count(*) FROM messages NATURAL JOIN mine",  # by its kind, which it does not name
    "WITH x AS (SELECT topic FROM messages) SELECT count(*) FROM x",
    "SELECT count(*) FROM global_temp.messages JOIN messages USING (offset)",  # which may be made of any
)
MINE = "CREATE TEMPORARY VIEW mine AS SELECT 'int' AS kind, 3 AS offset"


@pytest.fixture
def config(forgetful: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(forgetful, tmp_path)


def test_what_is_known_of_lake_and_log_is_what_reading_them_gives(
    spark: SparkSession, forgetful: BrokerProcess, config: Config, ask: Asked
) -> None:
    archive = Archived(spark, forgetful, config)
    with connect(forgetful) as connection:
        for topic in ("archived", "behind", "fresh", "gap", "log"):
            connection.hold(topic, name="somebody", start="earliest")
            connection.publish(topic, numbered(1, 9))
        archive.take("archived", 1, 10)
        archive.take("behind", 1, 5)
        archive.take("gap", 1, 3)
        archive.take("gap", 5, 7)  # twice in files of their own, and one range that the lake lacks
        dropped(connection, "archived", 10)
        dropped(connection, "behind", 3)  # of the log, a prefix that the lake has
        dropped(connection, "fresh", 4)  # and one that nobody has
    register(spark, config)
    spark.sql("CREATE GLOBAL TEMPORARY VIEW messages AS SELECT 3 AS offset")
    spark.sql(MINE)
    statements = (*KNOWN, *OTHERS)
    expected = {one: [tuple(row) for row in spark.sql(one).collect()] for one in statements}
    assert expected[KNOWN[0]] != [(0,)]
    queries = ask.queries
    stored = Stored(spark, config)
    for statement in statements:
        tried = queries._may_be_known(statement)
        known = tried and queries._known(stored, statement) is not None
        assert known == (statement in KNOWN), statement
        assert [*map(_plain, ask(statement))] == [*map(_plain, expected[statement])], statement


def test_a_column_that_was_not_read_fails_instead_of_being_empty(
    spark: SparkSession, forgetful: BrokerProcess, config: Config, ask: Asked
) -> None:
    with connect(forgetful) as connection:
        connection.hold("a", name="somebody", start="earliest")
        connection.publish("a", numbered(1, 3))
    Stored(spark, config).register_known()
    for name in ("timestamp", "producer", "source", "kind", "payload", "counter", "text"):
        with pytest.raises(Exception, match=UNKNOWN):
            spark.sql(f"SELECT {name} FROM messages").collect()
        with pytest.raises(Exception, match=UNKNOWN):
            spark.sql(f"SELECT count({name}) FROM messages WHERE {name} IS NULL").collect()


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    """Without times, which come with a zone or without."""
    return tuple(
        bytes(one) if isinstance(one, bytearray) else one for one in row if not hasattr(one, "tzinfo")
    )
