"""Source, sink and jobs on a real Spark standalone cluster: executors are processes of their own, on two workers. The
broker has TLS, and lets nobody in without a token, which only the driver is given."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline import cluster_job
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_job import PARTITIONS
from tests.pipeline.forked_python import forking_python
from tests.pipeline.processes import CommandLines
from tests.pipeline.queries import connect
from tests.pipeline.rooms import JOBS, Rooms
from tests.pipeline.sessions import JVM, QUICK
from tests.pipeline.test_secure import holding
from tests.secured import Place

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_READINGS = {"readings/hall": 20_000, "readings/lab": 10_001}


def settings(folder: Path) -> dict[str, str]:
    """Two executors, both there before the first task is given out, Spark's own records at hand, and all that it writes
    in a folder."""
    return QUICK | {
        "spark.cores.max": "2",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder),
        "spark.eventLog.enabled": "true",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM.format(folder=folder),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM.format(folder=folder),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.local.dir": str(folder),
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("secured"), "--set", 'topics."#".keep=36500d')
    with place.broker:
        yield place


def test_two_executors_work_side_by_side_in_jobs_source_and_sink_and_every_row_is_there_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = place.broker
    (tmp_path / "driver").mkdir()
    with Cluster(tmp_path / "cluster", python=forking_python()) as cluster, CommandLines() as lines:
        monkeypatch.setenv("STAFETA_TOKEN", place.token)
        monkeypatch.setenv("STAFETA_CA", str(place.authority.roots))
        rooms = Rooms(broker, tmp_path)
        rooms.publish()
        with connect(broker) as client:
            for topic, rows in _READINGS.items():
                client.publish(topic, [f"{topic} {number}" for number in range(1, rows + 1)])
        conf = [word for pair in settings(tmp_path / "driver").items() for word in ("--conf", "=".join(pair))]
        where = ("--master", cluster.address, *conf)
        jobs = (*JOBS, str(cluster_job.__file__))
        words = ("pipeline", "run", *jobs, "--once")
        printed = rooms.run(*words, environment=cluster.environment(), where=where)
    assert lines.having("CoarseGrainedExecutorBackend")
    assert not lines.having(place.token), "a command line shows the token"
    assert place.token not in printed + rooms.errors
    rooms.check()
    told = json.loads((tmp_path / "told.json").read_text())

    assert told["read"] == {topic: [rows, rows, rows, 1, rows] for topic, rows in _READINGS.items()}
    published = Counter(
        f"{topic} {number}".encode() for topic, rows in _READINGS.items() for number in range(1, rows + 1)
    )
    with connect(broker) as client:
        for copy in ("copied/batch", "copied/stream"):
            payloads = client.read(copy, columns=["payload"])["payload"].to_pylist()
            assert Counter(payloads) == published

    both = [*cluster.executors(0), *cluster.executors(1)]
    assert sorted(both) == ["0", "1"], "each worker has an executor"
    tasks = Counter((work, executor) for work, executor, _ in told["tasks"])
    assert any(work == "stream" and speculative for work, _, speculative in told["tasks"]), (
        "none was speculated"
    )
    # In the stream, one of them is held up by the task that comes to a stop, and the other does all, that one too.
    for work in ("read", "batch"):
        shares = [tasks[work, executor] for executor in both]
        assert all(shares), f"one executor did all of {work!r}"
        assert sum(shares) >= PARTITIONS
    shares = [sum(tasks[job, executor] for job in JOBS) for executor in both]
    assert all(shares), f"one executor did all of the jobs: {shares}"

    # Neither in Spark's record of the events, nor in a checkpoint, a log of the cluster or the lake.
    (events,) = (tmp_path / "driver").glob("eventlog_v2_*")
    assert any(b"SparkListenerTaskEnd" in path.read_bytes() for path in events.iterdir())
    assert not holding(tmp_path, place.token)
