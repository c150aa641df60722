"""The jobs through Spark Connect: Spark, and the Python that runs `foreachBatch`, are another process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.pipeline.connect_server import ConnectServer
from tests.pipeline.rooms import JOBS, READINGS, ROOMS, Rooms

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path / "server") as started:
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
