"""Statements that are asked of a running pipeline: sessions of their own, cancelled with their jobs and no others."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.errors import Disconnected, InvalidFrame, InvalidQuery
from stafeta.pipeline.sql import server as server_module
from stafeta.pipeline.sql import wire
from stafeta.pipeline.sql.client import RemoteQueries
from stafeta.pipeline.sql.results import Done
from stafeta.pipeline.sql.server import SqlServer
from stafeta.pipeline.sql.warming import STATEMENTS, WarmUp
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import connect, forgetful, numbered, published
from tests.pipeline.statements import Kept
from tests.pipeline.test_sql import Undercut
from tests.waiting import PATIENCE, wait_until

__all__ = ["forgetful"]  # a fixture

TOKEN = "the token"


@pytest.fixture
def config(broker: BrokerProcess, tmp_path: Path) -> Config:
    return config_of(broker, tmp_path)


@pytest.fixture
def server(spark: SparkSession, config: Config) -> Iterator[SqlServer]:
    with SqlServer(spark, config, TOKEN) as one:
        yield one


class Asking:
    """A conversation, and what was told beside the results."""

    def __init__(self, server: SqlServer) -> None:
        self.told: list[str] = []
        self.output = Kept()
        self.queries = RemoteQueries(server.port, TOKEN, self.told.append)

    def __call__(self, statement: str, limit: int | None = None) -> list[tuple[Any, ...]]:
        self.done = self.queries.run(statement, self.output, limit)
        return list(zip(*(column.to_pylist() for column in self.output.results[-1].columns), strict=True))


@contextmanager
def asking(server: SqlServer) -> Iterator[Asking]:
    one = Asking(server)
    with closing(one.queries):
        yield one


def cancelled(ask: Asking, raised: list[BaseException]) -> bool:
    """Whether a statement has ended, which is to be cancelled."""
    ask.queries.cancel()
    return bool(raised)


def jobs(spark: SparkSession) -> set[int]:
    """The Spark jobs that run."""
    return set(spark.sparkContext.statusTracker().getActiveJobsIds())


@contextmanager
def endless(ask: Asking, spark: SparkSession) -> Iterator[list[BaseException]]:
    """Asks on another thread for what would take days, in a single task. It runs then; what it has raised, once it has
    ended. At the end the conversation is closed."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            ask("SELECT count(*) FROM range(0, 1000000000000, 1, 1) WHERE hash(id) = 1 AND hash(id, 1) = 2")
        except BaseException as error:  # noqa: BLE001 - for whoever looks
            raised.append(error)

    before = jobs(spark)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: bool(jobs(spark) - before))
        yield raised
    finally:
        ask.queries.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_each_conversation_has_views_and_settings_of_its_own(spark: SparkSession, server: SqlServer) -> None:
    with asking(server) as one, asking(server) as other:
        one("CREATE TEMP VIEW mine AS SELECT 7 AS seven")
        assert one.done == Done(0, cut=False, has_columns=False)
        one("SET spark.sql.session.timeZone=Europe/Bucharest")
        assert one("SELECT seven, current_timezone() FROM mine") == [(7, "Europe/Bucharest")]
        with pytest.raises(
            InvalidQuery, match=r"^The table or view `mine` cannot be found\..*\(line 1, column 15\)"
        ):
            other("SELECT * FROM mine")
        assert other("SELECT current_timezone()") != [("Europe/Bucharest",)]
        assert not spark.catalog.tableExists("mine")


def test_answers_are_those_that_a_session_of_ones_own_would_give(
    server: SqlServer, broker: BrokerProcess
) -> None:
    published(broker, hall=["1", "2", "3"], lab=["x"])
    with asking(server) as ask:
        count = "SELECT topic, count(*), max(text) FROM messages GROUP BY topic ORDER BY topic"
        assert ask(count) == [("hall", 3, "3"), ("lab", 1, "x")]
        assert ask("SELECT id FROM range(10) ORDER BY id DESC", limit=3) == [(9,), (8,), (7,)]
        assert ask.done == Done(3, cut=True, has_columns=True)
        assert ask("SELECT id FROM range(3) WHERE id > 5") == []
        rows = ask("SELECT id FROM range(0, 50000, 1, 5) ORDER BY id DESC")
        assert rows == [(number,) for number in reversed(range(50_000))]
        with pytest.raises(InvalidQuery, match=r"^enough$"):
            ask("SELECT raise_error('enough') FROM range(2)")
        broker.kill()
        with pytest.raises(Exception, match=r"The broker at grpc://\S+ does not answer .+ there is no lake"):
            ask(count)
        assert ask("SELECT 1") == [(1,)], "it goes on after an error"


class First(Kept):
    """An output that notes that something has come."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows


def test_rows_come_before_the_last_is_computed(server: SqlServer) -> None:
    output = First()
    late = "SELECT if(id < 9999, id, raise_error('late')) FROM range(0, 10000, 1, 10)"
    with asking(server) as ask, pytest.raises(InvalidQuery, match="late"):
        ask.queries.run(late, output)
    assert output.rows >= 1000


def test_a_query_that_the_log_has_run_away_from_begins_anew(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    with connect(forgetful) as connection:
        connection.hold("hall", name="somebody", start="earliest")
        connection.publish("hall", numbered(1, 5))
    output = Undercut(Archive(spark, forgetful, config), forgetful)
    with SqlServer(spark, config, TOKEN) as server, asking(server) as ask:
        ask.queries.run("SELECT count(DISTINCT payload) AS n FROM messages", output)
    assert output.results[0].to_pylist() == [{"n": 5}]


def test_what_is_cancelled_is_the_query_alone(spark: SparkSession, server: SqlServer) -> None:
    before = jobs(spark)
    one, other = Asking(server), Asking(server)
    with endless(other, spark) as raised_too, endless(one, spark) as raised:
        wait_until(lambda: cancelled(one, raised))
        assert [type(error) for error in raised] == [KeyboardInterrupt]
        wait_until(lambda: len(jobs(spark) - before) == 1)
        assert one("SELECT 1") == [(1,)], "the conversation goes on"
        assert not raised_too, "and so does the other query"
        wait_until(lambda: cancelled(other, raised_too))
    wait_until(lambda: jobs(spark) <= before)


def test_what_nobody_waits_for_ends(spark: SparkSession, server: SqlServer) -> None:
    before = jobs(spark)
    ask = Asking(server)
    with endless(ask, spark) as raised:
        ask.queries.close()  # as when its process ends
        wait_until(lambda: jobs(spark) <= before)
    assert [type(error) for error in raised] == [Disconnected]


def test_a_pipeline_that_ends_is_told_in_a_sentence(spark: SparkSession, config: Config) -> None:
    before = jobs(spark)
    with SqlServer(spark, config, TOKEN) as server:
        ask = Asking(server)
        with endless(ask, spark) as raised:
            server.__exit__(None, None, None)
            wait_until(lambda: bool(raised))
    (error,) = raised
    assert isinstance(error, Disconnected)
    assert str(error).startswith("The pipeline whose Spark was asked has ended (")
    wait_until(lambda: jobs(spark) <= before)


def test_who_does_not_know_the_token_is_not_answered(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in (b"", b"another", TOKEN.encode() + b"s"):
        with pytest.raises((InvalidFrame, OSError)):
            RemoteQueries(server.port, said.decode(), print)
    for data in (
        b"GET / HTTP/1.1\r\n\r\n" * 100,
        b"k\xff\xff\xff\xff\xff\xff\xff\xff",
        b"q\x02\0\0\0\0\0\0\0{}",
    ):
        assert answer_to(server, data) == b""
    with monkeypatch.context() as impatient:
        impatient.setattr(server_module, "PATIENCE", 0.1)
        assert answer_to(server, b"k") == b"", "nobody is waited for"
    with asking(server) as ask:
        assert ask("SELECT 1") == [(1,)]


def test_what_is_no_question_ends_the_conversation_and_nothing_else(server: SqlServer) -> None:
    for kind, body in (
        (wire.STATEMENT, b"["),
        (wire.STATEMENT, b"[]"),
        (wire.STATEMENT, b'{"number": 1, "statement": 2, "limit": null}'),
        (wire.BATCH, b"{}"),
    ):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            wire.send(connection, wire.TOKEN, TOKEN.encode())
            assert wire.receive(connection, 0) is not None
            wire.send(connection, kind, body)
            assert wire.receive(connection) is None
    with asking(server) as ask:
        assert ask("SELECT 1") == [(1,)]


def test_only_so_many_ask_at_a_time(server: SqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS", 2)
    with asking(server) as one, asking(server):
        with pytest.raises((InvalidFrame, OSError)):
            RemoteQueries(server.port, TOKEN, print)
        assert one("SELECT 1") == [(1,)]
    wait_until(lambda: answers(server))


def answers(server: SqlServer) -> bool:
    try:
        RemoteQueries(server.port, TOKEN, print).close()
    except (InvalidFrame, OSError):
        return False
    return True


def answer_to(server: SqlServer, data: bytes) -> bytes:
    """What comes back for these bytes, up to the end."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        try:
            connection.sendall(data)
            return connection.recv(100)
        except ConnectionError:
            return b""


# --- before the first


def test_statements_are_carried_out_before_anybody_asks_and_leave_nothing(
    spark: SparkSession, broker: BrokerProcess, config: Config
) -> None:
    published(broker, hall=numbered(1, 3))
    spark.catalog.dropTempView("messages")  # of another test
    with WarmUp(spark, config, latest=0) as warm:
        warm.thread.join(PATIENCE)
        assert not warm.thread.is_alive()
    assert warm.done == len(STATEMENTS)
    assert not spark.catalog.tableExists("messages"), "the views are those of another session"


def test_where_the_broker_is_away_or_the_pipeline_ends_nothing_is_carried_out(
    spark: SparkSession, broker: BrokerProcess, config: Config
) -> None:
    with WarmUp(spark, config, latest=1000) as waiting:
        assert waiting.thread.is_alive()
    assert not waiting.thread.is_alive()
    broker.stop()
    with WarmUp(spark, config, latest=0) as warm:
        warm.thread.join(PATIENCE)
        assert not warm.thread.is_alive()
    assert (waiting.done, warm.done) == (0, 0)
