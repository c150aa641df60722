"""Jobs, SQL and declarative pipelines through Spark Connect: Spark, and the Python of `foreachBatch`, are elsewhere.

All tests share one server.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.cli import exits
from tests.brokers import BrokerProcess
from tests.pipeline.connect_server import ConnectServer
from tests.pipeline.declarative import Example
from tests.pipeline.forked_python import forking_python
from tests.pipeline.processes import Family
from tests.pipeline.queries import address, connect
from tests.pipeline.rooms import JOBS, READINGS, ROOMS, Rooms
from tests.pipeline.sessions import JVM
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_PATIENCE = 400.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server", python=forking_python()) as started:
        yield started
    assert not started.family.members()


def test_jobs_and_sql_run_unchanged_through_a_connect_server(
    broker: BrokerProcess, server: ConnectServer, tmp_path: Path
) -> None:
    rooms = Rooms(broker, tmp_path)
    rooms.publish()
    where = ("--remote", server.address)
    environment = server.environment()
    rooms.run("pipeline", "run", *JOBS, "--once", environment=environment, where=where)
    rooms.check()
    asked = "SELECT count(*) AS count, count(DISTINCT topic) AS topics FROM readings"
    answer = rooms.run("sql", "--json", asked, environment=environment, where=where)
    assert json.loads(answer) == {"count": ROOMS * READINGS, "topics": ROOMS}


def test_statements_come_from_a_pipe_and_results_go_into_one(
    broker: BrokerProcess, server: ConnectServer, tmp_path: Path
) -> None:
    with connect(broker) as connection:
        connection.publish("hall/a", ["20.5", "21.5"], kind="float")
        connection.publish("b", ["text"])
    text = """-- what is; there
      SELECT topic, max(number) AS most FROM readings GROUP BY topic;
      SELECT ';' AS s, text FROM messages WHERE kind = 'string';
      SELECT nix FROM readings; SELECT 'not reached'
    """
    here = {
        "STAFETA_PIPELINE_BROKER": address(broker),
        "STAFETA_LAKE_WAREHOUSE": str(tmp_path / "lake"),
        "STAFETA_STATE": str(tmp_path / "state"),
    }
    sql = (sys.executable, "-m", "stafeta", "sql", "--remote", server.address, "--json")
    with Family() as family:
        done = subprocess.run(
            sql,
            input=text,
            env=family.environment() | here,
            capture_output=True,
            timeout=_PATIENCE,
            text=True,
            check=False,
        )
        wait_until(lambda: not family.members(), _PATIENCE)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"topic": "hall/a", "most": 21.5},
        {"s": ";", "text": "text"},
    ]
    assert done.returncode == exits.REFUSED
    told = done.stderr.splitlines()
    assert told[0].startswith(
        "stafeta: A column, variable, or function parameter with name `nix` cannot be resolved"
    )
    assert told[1:] == ["  SELECT nix FROM readings", "         ^"]
    assert not (tmp_path / "lake").exists(), "asking makes no lake"


def test_two_runs_of_a_declarative_pipeline_bring_each_message_once_into_the_table_and_once_into_the_topic(
    broker: BrokerProcess, server: ConnectServer, tmp_path: Path
) -> None:
    example = Example(broker, tmp_path / "example", server.tables)
    quick = {"JAVA_TOOL_OPTIONS": JVM.format(folder=tmp_path)}
    for first, last in ((1, 30), (31, 50)):
        example.publish(first, last)
        assert "Run is COMPLETED." in example.run("--remote", server.address, more=quick)
        example.check(last)
