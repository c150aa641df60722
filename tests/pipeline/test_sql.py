"""Statements on lake and log: what they see, what they read, and what is told where they cannot be carried out."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stafeta.cli.sql_output import Parquet
from stafeta.config import Config
from stafeta.errors import DataLoss, InvalidQuery, NoReply
from stafeta.pipeline.sql.queries import Queries, scans_of, used_columns
from stafeta.pipeline.sql.results import Done
from stafeta.pipeline.view import Stored, register
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import connect, dropped, forgetful, numbered, published
from tests.pipeline.statements import Asked, Kept, ask

__all__ = ["ask", "forgetful"]  # fixtures


@pytest.fixture
def config(broker: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(broker, tmp_path)


def refused(ask: Asked, statement: str) -> str:
    with pytest.raises(InvalidQuery) as caught:
        ask(statement)
    return str(caught.value)


# --- what cannot be carried out


def test_what_spark_refuses_is_a_sentence_with_the_place(ask: Asked) -> None:
    assert refused(ask, "SELEC 1") == (
        "Syntax error at or near 'SELEC'. (line 1, column 1)\n"
        "  SELEC 1\n"
        "  ^"
    )  # fmt: skip
    assert refused(ask, "SELECT 1,\n\tfoo(1)") == (
        "Cannot resolve routine `foo` on search path [`system`.`builtin`, `system`.`session`, "
        "`spark_catalog`.`default`]. (line 2, column 2)\n"
        "   foo(1)\n"
        "   ^"
    )
    told = refused(ask, "SELECT topc FROM messages")
    assert told.startswith(
        "A column, variable, or function parameter with name `topc` cannot be resolved. Did you"
    )
    assert told.endswith(" (line 1, column 8)\n  SELECT topc FROM messages\n         ^")
    assert refused(ask, "SELECT * FROM nix").startswith("The table or view `nix` cannot be found. ")
    assert ask.output.results == []


def test_what_fails_while_it_runs_is_a_sentence_too(ask: Asked) -> None:
    told = refused(ask, "SELECT id, 1 div id FROM range(3)")
    assert told.startswith("Division by zero. Use `try_divide`")
    assert told.endswith("(line 1, column 12)\n  SELECT id, 1 div id FROM range(3)\n             ^")
    assert refused(ask, "SELECT raise_error('enough') FROM range(2)") == "enough"
    assert ask("SELECT 1") == [(1,)], "the session is as good as before"


def test_without_broker_and_lake_there_is_nothing_to_ask(ask: Asked, broker: BrokerProcess) -> None:
    broker.kill()
    with pytest.raises(
        NoReply, match=r"The broker at grpc://\S+ does not answer \(.+\), and there is no lake"
    ):
        ask("SELECT count(*) FROM messages")
    assert ask("SELECT 1") == [(1,)], "what names no view needs neither"


# --- what is seen


def test_statements_see_lake_and_log_as_of_when_they_begin(
    ask: Asked, spark: SparkSession, broker: BrokerProcess, config: Config
) -> None:
    published(broker, hall=["1", "2", "3"], lab=["x"])
    count = "SELECT topic, count(*), sum(offset) FROM messages GROUP BY topic ORDER BY topic"
    assert ask(count) == [("hall", 3, 6), ("lab", 1, 1)]
    Archive(spark, broker, config).take("hall", 3)
    assert ask(count) == [("hall", 3, 6), ("lab", 1, 1)]
    published(broker, hall=["4"])
    assert ask("CREATE TEMP VIEW mine AS SELECT * FROM messages WHERE topic = 'hall'") == []
    assert ask.done == Done(0, cut=False, has_columns=False)
    published(broker, hall=["5"])
    assert ask("SELECT max(offset), max(text) FROM mine") == [(5, "5")], "a view of one of ours is as fresh"
    assert ("", "messages", True) in ask("SHOW TABLES")
    assert ask.told == []


def test_without_a_broker_it_is_the_lake_alone_and_that_is_told(
    ask: Asked, spark: SparkSession, broker: BrokerProcess, config: Config
) -> None:
    published(broker, hall=["1", "2", "3"])
    Archive(spark, broker, config).take("hall", 3)
    broker.kill()
    assert ask("SELECT count(*) FROM messages") == [(2,)]
    (told,) = ask.told
    assert told.startswith("The broker at grpc://127.0.0.1:")
    assert "this is the lake alone, archived up to 20" in told


class Undercut(Kept):
    """An output before which the log goes on: when a result begins, all is archived, and the broker drops it."""

    def __init__(self, archive: Archive, broker: BrokerProcess) -> None:
        super().__init__()
        self._archive = archive
        self._broker = broker

    def begin(self, schema: pa.Schema) -> None:
        super().begin(schema)
        with connect(self._broker) as connection:
            (topic,) = connection.topics("hall")
            if topic.first < topic.next:
                self._archive.take("hall")
                dropped(connection, "hall", topic.next)


def test_a_query_that_the_log_has_run_away_from_begins_anew(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody", start="earliest")
        connection.publish("hall", numbered(1, 5))
    output = Undercut(Archive(spark, forgetful, config), forgetful)
    queries = Queries(spark, config, print)
    queries.run("SELECT count(DISTINCT payload) AS n FROM messages", output)
    assert output.results[0].to_pylist() == [{"n": 5}]
    assert output.dropped == 1
    published(forgetful, hall=["6"])
    output.shown = True
    with pytest.raises(DataLoss, match="1 of the messages 6 to 6 of topic 'hall' are gone"):
        queries.run("SELECT count(DISTINCT payload) AS n FROM messages", output)


def test_of_a_long_log_topics_that_a_query_excludes_are_not_read(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    with connect(forgetful) as connection:
        for topic in ("hall", "lab"):
            connection.hold(topic, name="somebody", start="earliest")
            connection.publish(topic, numbered(1, 5))
    output = Undercut(Archive(spark, forgetful, config), forgetful)
    queries = Queries(spark, config, print, long=1)
    queries.run("SELECT max(text) AS last FROM messages WHERE topic = 'lab'", output)
    assert output.results[0].to_pylist() == [{"last": "5"}]
    assert output.dropped == 0, "it has missed what is gone of the other topic"
    twice = "SELECT count(m.text) AS m, count(n.text) AS n FROM messages m JOIN messages n USING (offset) "
    queries.run(f"{twice} WHERE m.topic = 'lab' AND n.topic = 'hall'", output)
    assert output.results[1].to_pylist() == [{"m": 5, "n": 5}], "one scan has the filter of the other"


# --- how results come


def test_a_limit_leaves_the_first_rows_and_says_so(ask: Asked) -> None:
    assert ask("SELECT id FROM range(10) ORDER BY id DESC", limit=3) == [(9,), (8,), (7,)]
    assert ask.done == Done(3, cut=True, has_columns=True)
    assert ask("SELECT id FROM range(3) ORDER BY id", limit=3) == [(0,), (1,), (2,)]
    assert ask.done == Done(3, cut=False, has_columns=True)


def test_rows_come_in_order_over_partitions_and_batches(ask: Asked) -> None:
    rows = ask("SELECT id, id % 7 AS rest FROM range(0, 50000, 1, 5) ORDER BY rest, id DESC")
    assert rows == sorted(((n, n % 7) for n in range(50_000)), key=lambda row: (row[1], -row[0]))
    assert ask("SELECT id, id FROM range(3) WHERE id > 5") == []
    assert ask.output.results[-1].column_names == ["id", "id"]


def test_the_result_of_a_query_becomes_a_file(ask: Asked, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    statement = "SELECT id, parse_json('{\"a\":1}') AS variant, timestamp_micros(id) AS time FROM range({}) ORDER BY id"
    done = ask.queries.run(statement.replace("{}", "3"), Parquet(path))
    assert done == Done(3, cut=False, has_columns=True)
    written = pq.read_table(path)
    assert (written["id"].to_pylist(), written["variant"][0].as_py()) == ([0, 1, 2], '{"a":1}')
    assert written.schema.field("time").type == pa.timestamp("us", "UTC")
    with pytest.raises(InvalidQuery):
        ask.queries.run("SELECT raise_error('enough') FROM range(3)", Parquet(path))
    assert [one.name for one in tmp_path.glob("*x.parquet*")] == ["x.parquet"]
    assert pq.read_table(path).equals(written), "what failed leaves the file as it was"


# --- which columns are read


USED = {
    "SELECT count(*) FROM messages": ["offset"],
    "SELECT topic, avg(number) FROM readings GROUP BY topic": ["kind", "payload", "topic"],
    "SELECT text FROM messages WHERE producer = 'x'": ["kind", "payload", "producer"],
    "SELECT count(*) FROM messages WHERE offset > (SELECT avg(offset) FROM readings WHERE source > '')": [
        "kind",
        "offset",
        "source",
    ],
    "SELECT topic, (SELECT max(counter) FROM messages r WHERE r.topic = m.topic) FROM messages m": [
        "counter",
        "topic",
    ],
    "WITH x AS (SELECT * FROM messages) SELECT a.topic FROM x a JOIN x b USING (offset)": ["offset", "topic"],
    "SELECT topic FROM messages WHERE EXISTS (SELECT * FROM readings WHERE producer > '')": [
        "kind",
        "producer",
        "topic",
    ],
    "SELECT m.text, r.number, r.decimal FROM messages m JOIN readings r USING (topic, offset)": [
        "kind",
        "offset",
        "payload",
        "topic",
    ],
    "SELECT * FROM messages": None,
    "SELECT m.* FROM messages m JOIN readings r ON m.counter = r.offset": None,
    "SELECT 1": None,
}
# Spark knows that these are never null, and leaves their columns out of its plan.
NEVER_NULL = (
    "SELECT count(payload), count(kind), count(timestamp), count(producer), count(source) FROM messages",
    "SELECT count(*) FROM messages WHERE payload IS NOT NULL AND kind IS NOT NULL",
    "SELECT coalesce(producer, 'x') IS NULL FROM messages",
)


@pytest.mark.parametrize("archived", [False, True])
def test_of_the_log_only_those_columns_are_read_that_a_query_uses(
    ask: Asked, spark: SparkSession, broker: BrokerProcess, config: Config, archived: bool
) -> None:
    with connect(broker) as connection:
        connection.publish("hall", ["1", "2"], kind="int")
        connection.publish("lab", ["x"])
    if archived:
        Archive(spark, broker, config).take("hall", 2)
    register(spark, config)
    frames = {statement: spark.sql(statement) for statement in USED}
    assert {statement: used_columns(scans_of(frame)) for statement, frame in frames.items()} == USED
    Stored(spark, config).register(decoded=True)  # as for a long log
    of_numbers = [scans_of(spark.sql(list(USED)[number])) for number in (1, 7)]
    assert [used_columns(scans) for scans in of_numbers] == [
        ["number", "numeric", "topic"],
        ["decimal", "kind", "number", "numeric", "offset", "payload", "topic"],
    ]
    register(spark, config)
    compared = [*list(USED)[:2], *list(USED)[3:6], list(USED)[7]] if archived else NEVER_NULL
    results = {statement: spark.sql(statement).collect() for statement in compared}
    for statement, rows in results.items():
        expected = sorted(map(tuple, rows))
        assert sorted(ask(statement)) == expected, "with those columns only, the result is the same"
        assert expected
