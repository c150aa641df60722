"""A replay that is killed goes on where it was."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import replay
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.processes import Family
from tests.pipeline.processes import command as command_of
from tests.pipeline.queries import address, connect, numbered, payloads, published
from tests.pipeline.sessions import IMPORTED_AHEAD, JVM, QUICK
from tests.waiting import PATIENCE, wait_until


@pytest.mark.soak  # test_replay_steps.py kills it at each step, and test_killed.py a driver and no JVM
def test_a_replay_that_was_killed_goes_on_where_it_was_and_nothing_outlives_its_driver(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(broker, a=numbered(1, 300))
    config = config_of(broker, tmp_path)
    Archive(spark, broker, config).take("#")
    asked = {"topic": "a", "into": "copies", "rate": "50", "name": "mine"}
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    place = ["--broker", address(broker), "--set", f"lake.warehouse={config.lake.warehouse}"]
    chosen = QUICK | {"spark.driver.extraJavaOptions": JVM.format(folder=tmp_path)}
    small = ["--master", "local[2]", *(f"--conf={name}={value}" for name, value in chosen.items())]
    run = [sys.executable, "-m", "stafeta", "pipeline", "run"]
    with Family() as family, connect(broker) as connection:

        def some_sent(first: "subprocess.Popen[bytes]") -> bool:
            """And the archive, which runs beside it, has Python processes of its own below Spark's JVM."""
            assert first.poll() is None, "it has ended"
            sent = sum(topic.next - 1 for topic in connection.topics("copies"))
            assert sent < 300, "it has sent everything"
            return sent >= 10 and any("pyspark.daemon" in command_of(one) for one in family.members())

        line = [*run, "archive", "replay", *options, *place, *small]
        environment = family.environment() | {"PYTHONPATH": IMPORTED_AHEAD}
        with subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL) as first:
            try:
                wait_until(lambda: some_sent(first), PATIENCE)
            finally:
                first.kill()
        wait_until(lambda: not family.members(), PATIENCE)  # neither the JVM nor a worker stays
    sent = len(payloads(broker, "copies"))
    assert 10 <= sent < 300
    replay.start(Context(spark, config, "replay", "", arguments=asked))
    told = capsys.readouterr().err.splitlines()
    assert (told[0], told[-1]) == ("Replay mine goes on.", "Replay mine is done: 300 messages.")
    assert payloads(broker, "copies") == numbered(1, 300)
