"""The command `stafeta pipeline run replay`, killed and started again."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.processes import Family
from tests.pipeline.queries import address, numbered, payloads, published
from tests.waiting import wait_until

PATIENCE = 120.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_that_was_killed_goes_on_where_it_was(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published(broker, a=numbered(1, 400))
    config = config_of(broker, tmp_path)
    Archive(spark, broker, config).take("#")
    run = [sys.executable, "-m", "stafeta", "pipeline", "run"]
    place = ["--broker", address(broker), "--set", f"lake.warehouse={config.lake.warehouse}"]
    small = ["--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    replay = [
        *run,
        "replay",
        "--topic",
        "a",
        "--into",
        "copies",
        "--rate",
        "200",
        "--name",
        "mine",
        *place,
        *small,
    ]

    def some_sent(first: subprocess.Popen[str]) -> bool:
        assert first.poll() is None, "it has ended"
        return len(payloads(broker, "copies")) >= 40

    with Family() as family:
        environment = family.environment()
        with subprocess.Popen(replay, env=environment, text=True) as first:
            try:
                wait_until(lambda: some_sent(first), PATIENCE)
            finally:
                first.kill()
        family.kill()
        assert 40 <= len(payloads(broker, "copies")) < 400
        again = subprocess.run(
            replay, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert again.returncode == 0, again.stderr
        assert "Replay mine goes on.\n" in again.stderr
        assert payloads(broker, "copies") == numbered(1, 400)
        assert "Traceback" not in again.stderr
        family.kill()
