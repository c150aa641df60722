"""The jobs on a real Spark standalone cluster: executors are processes of their own, on two workers."""

from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.pipeline.cluster import Cluster
from tests.pipeline.rooms import JOBS, Rooms
from tests.pipeline.sessions import JVM

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def settings(folder: Path) -> dict[str, str]:
    """Two executors, both there before the first task is given out, and all that Spark writes in a folder."""
    return {
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM.format(folder=folder),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM.format(folder=folder),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.local.dir": str(folder),
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
    }


def test_jobs_run_unchanged_on_a_cluster_and_both_its_executors_take_part(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    rooms = Rooms(broker, tmp_path)
    rooms.publish()
    (tmp_path / "driver").mkdir()
    with Cluster(tmp_path / "cluster") as cluster:
        conf = [word for pair in settings(tmp_path / "driver").items() for word in ("--conf", "=".join(pair))]
        where = ("--master", cluster.address, *conf)
        rooms.run("pipeline", "run", *JOBS, "--once", environment=cluster.environment(), where=where)
        rooms.check()
        shares = [cluster.tasks_done(worker) for worker in (0, 1)]
    assert all(shares), f"one executor did all: {shares}"
