"""Statements that come by views which they do not name: they see all messages, whatever was asked before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.errors import InvalidQuery
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.queries import connect, numbered, published
from tests.pipeline.statements import Asked, ask

__all__ = ["ask"]

# Each leaves a part of the messages, if it leaves anything: the last ones, empty columns, columns that fail, one topic.
BEFORE = (
    "SELECT * FROM messages WHERE topic = 'a' ORDER BY offset DESC LIMIT 10",
    "SELECT number FROM readings WHERE topic = 'a' ORDER BY offset DESC LIMIT 10",
    "WITH x AS (SELECT topic FROM messages) SELECT count(*) FROM x",
    "SELECT count(*) FROM messages",
    "SELECT max(text) FROM messages WHERE topic = 'b'",
)
KINDS = "SELECT count(*), count(DISTINCT kind) FROM"
ALL = [(43, 2)]


@pytest.fixture
def config(broker: BrokerProcess, tmp_path: Path) -> Config:
    with connect(broker) as connection:
        for topic, count in (("a", 30), ("b", 10)):
            connection.publish(topic, numbered(1, count), kind="int")
        connection.publish("b", ["x", "y", "z"], kind="string")
    return config_of(broker, tmp_path)


@pytest.fixture(autouse=True)
def _left(spark: SparkSession) -> Iterator[None]:
    """No variable and no view of a test's own is left."""
    yield
    for name in ("q", "v"):
        spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {name}")
    spark.sql("RESET t")
    spark.catalog.dropGlobalTempView("everything")


@pytest.mark.parametrize("before", BEFORE)
def test_a_view_that_a_variable_names_is_whole(ask: Asked, before: str) -> None:
    ask(f"DECLARE OR REPLACE q = '{KINDS} messages'")
    ask("DECLARE OR REPLACE v = 'messages'")
    ask("SET t=readings")
    ask(before)
    assert ask(f"{KINDS} IDENTIFIER(v)") == ALL
    ask(before)
    assert ask("EXECUTE IMMEDIATE q") == ALL
    ask(before)
    joined = "SELECT count(*), count(number) FROM messages JOIN ${t} USING (topic, offset)"
    assert ask(joined) == [(40, 40)]


@pytest.mark.parametrize("hidden", ["IDENTIFIER('mess' || 'ages')", "${t}"])
def test_a_view_that_is_made_of_one_that_is_not_named_is_whole_and_fresh(
    ask: Asked, broker: BrokerProcess, hidden: str
) -> None:
    ask("SET t=messages")
    ask(BEFORE[0])
    ask(f"CREATE TEMP VIEW mine AS SELECT * FROM {hidden}")
    ask(BEFORE[0])
    assert ask(f"{KINDS} mine") == ALL
    published(broker, a=["x"])
    assert ask(f"{KINDS} mine") == [(44, 2)]


def test_a_view_for_all_sessions_is_whole_in_each(ask: Asked, spark: SparkSession, config: Config) -> None:
    Asked(spark, config)("CREATE GLOBAL TEMP VIEW everything AS SELECT * FROM messages")
    for before in BEFORE:
        ask(before)
        assert ask(f"{KINDS} global_temp.everything") == ALL


@pytest.mark.parametrize("before", BEFORE)
def test_a_part_of_the_messages_is_there_for_the_statement_that_asked_for_it_alone(
    ask: Asked, spark: SparkSession, before: str
) -> None:
    ask(before)
    with pytest.raises(InvalidQuery):
        ask(f"SELECT nummer FROM ({before})")
    assert not any(map(spark.catalog.tableExists, ("messages", "readings")))
