"""Source and sink on a real Spark standalone cluster: executors are processes of their own, on two workers."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import stafeta
from tests.brokers import BrokerProcess
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_driver import PARTITIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

_READINGS = {"readings/hall": 20_000, "readings/lab": 10_001}


def test_two_executors_read_and_write_side_by_side_and_every_row_is_there_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    host, port = broker.door("flight")
    address = f"grpc://{host}:{port}"
    with stafeta.connect(address) as client:
        for topic, rows in _READINGS.items():
            client.publish(topic, [f"{topic} {number}" for number in range(1, rows + 1)])
        with Cluster(tmp_path / "cluster") as cluster:
            driver = [sys.executable, "-m", "tests.pipeline.cluster_driver"]
            done = subprocess.run(
                [*driver, cluster.address, address, str(tmp_path / "driver")],
                env=cluster.environment(),
                timeout=200,
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)

        assert told["read"] == {topic: [rows, rows, rows, 1, rows] for topic, rows in _READINGS.items()}
        published = Counter(
            f"{topic} {number}".encode() for topic, rows in _READINGS.items() for number in range(1, rows + 1)
        )
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
