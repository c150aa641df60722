"""The job replay on a real broker and a real lake."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.errors import ConfigError
from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs import replay
from stafeta.pipeline.jobs.replaying.replay_plan import PlanStore
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archive, config_of
from tests.pipeline.queries import connect, in_background, numbered, payloads
from tests.waiting import wait_until

BEGIN = 1_794_787_200_000_000  # microseconds


class Stage:
    """A broker whose topics are in a lake, and replays of them."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.config = config_of(broker, folder)
        self.archive = Archive(spark, broker, self.config)
        self._spark = spark

    def publish(self, topic: str, texts: list[str], *, step: int) -> None:
        """Messages that are so many microseconds apart."""
        times = pa.array([BEGIN + step * number for number in range(len(texts))], pa.timestamp("us", "UTC"))
        with connect(self.broker) as connection:
            connection.publish(topic, pa.table({"payload": texts, "timestamp": times}))

    def context(self, *, batch: int = 1_000_000, **arguments: Any) -> Context:
        config: Config = replace(self.config, pipeline=replace(self.config.pipeline, batch=batch))
        return Context(self._spark, config, "replay", "", arguments=arguments)

    def run(self, **arguments: Any) -> None:
        replay.start(self.context(**arguments))

    @contextmanager
    def running(self, **arguments: Any) -> Iterator[threading.Event]:
        """Runs it meanwhile; the event stops it."""
        context = self.context(**arguments)
        with in_background(lambda: replay.start(context)):
            try:
                yield context.stopping
            finally:
                context.stopping.set()

    def payloads(self, topic: str) -> list[str]:
        return payloads(self.broker, topic)


@pytest.fixture
def stage(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Stage:
    return Stage(spark, broker, tmp_path)


def test_what_cannot_be_replayed_is_told(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"There is nothing in the lake .*: run the job archive first"):
        stage.run(topic="#", into="copies")
    stage.publish("a", numbered(1, 3), step=1)
    stage.archive.take("#")
    stage.run(topic="b/#", into="copies")
    stage.run(topic="a", into="copies", from_offset=4)
    assert capsys.readouterr().err == "No message of the lake is asked for.\n" * 2
    stage.run(topic="a", into="copies", name="mine")
    with pytest.raises(
        ConfigError,
        match=r"'mine' was begun with other options: into was 'copies', to_offset was None\. Give the",
    ):
        stage.run(topic="a", into="others", to_offset=7, name="mine")
    assert stage.payloads("copies") == numbered(1, 3)


def test_replays_of_two_lakes_under_one_name_are_two(
    spark: SparkSession, stage: Stage, broker: BrokerProcess, tmp_path: Path
) -> None:
    stage.publish("a", numbered(1, 3), step=1)
    other = Stage(spark, broker, tmp_path / "other")
    for one in (stage, other):
        one.archive.take("a")
        one.run(topic="a", into="copies", name="mine")
    assert stage.payloads("copies") == numbered(1, 3) * 2
    other.config = replace(other.config, lake=replace(other.config.lake, namespace="second"))
    Archive(spark, broker, other.config).take("a")
    with pytest.raises(ConfigError, match=r"'mine' is one of another lake\. Give this one another --name"):
        other.run(topic="a", into="copies", name="mine")


def test_messages_are_replayed_by_topic_time_and_offset(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.publish("a", numbered(1, 40), step=2_000_000)
    stage.publish("b/c", [f"b{number}" for number in range(20)], step=4_000_000)
    stage.archive.take("#")
    # In several portions, in the order of their times.
    stage.run(topic="#", into="all", batch=25, name="first")
    told = capsys.readouterr().err.splitlines()
    # Where it takes long, it says how far it is.
    assert [line for line in told if "about" not in line] == [
        "Replay first: 60 messages of 2 topics.",
        "Replay first is done: 60 messages.",
    ]
    expected = []
    for number in range(20):
        expected += [str(2 * number + 1), f"b{number}", str(2 * number + 2)]
    assert stage.payloads("all") == expected
    # Started again, it has nothing left to do.
    stage.run(topic="#", into="all", batch=25, name="first")
    assert len(stage.payloads("all")) == 60
    # A part of them, each to a topic of its own, with the times that they had.
    stage.run(
        topic="#",
        into="again/{topic}",
        since=str((BEGIN + 10_000_000) // 1000),
        until=str((BEGIN + 50_000_000) // 1000),
        from_offset=8,
        to_offset=20,
        keep_times=True,
    )
    assert stage.payloads("again/a") == numbered(8, 19)
    assert stage.payloads("again/b/c") == [f"b{number}" for number in range(7, 13)]
    with connect(stage.broker) as connection:
        times = connection.read("again/a").column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [BEGIN + 2_000_000 * number for number in range(7, 19)]
        (first,) = connection.read("all", end=2).column("timestamp").cast(pa.int64()).to_pylist()
        assert first != BEGIN
    # What has been replayed since is not part of it.
    stage.archive.take("all")
    stage.run(topic="#", into="all", batch=25, name="first")
    assert len(stage.payloads("all")) == 60


def test_a_replay_that_was_stopped_goes_on_where_it_was(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.publish("a", numbered(1, 300), step=1000)
    stage.archive.take("#")
    slow: dict[str, Any] = {"topic": "a", "into": "copies", "rate": "100", "name": "mine"}
    with stage.running(**slow) as stopping:
        wait_until(lambda: len(stage.payloads("copies")) >= 40)
        stopping.set()
    sent = len(stage.payloads("copies"))
    assert 40 <= sent < 300
    assert "Replay mine was stopped; --name mine goes on with it.\n" in capsys.readouterr().err
    # Meanwhile the lake's files become others, and an attempt dies between staging and committing.
    stage.archive.replace(stage.archive.rows().orderBy("payload"))
    plan = PlanStore(stage.config.lake.warehouse).read("mine")
    with connect(stage.broker) as connection:
        assert plan is not None
        transaction = connection.transaction(f"spark/replay/mine{plan.producer}")
        transaction.write("copies", ["left behind"], part="dead")
    begin = time.monotonic()
    stage.run(**slow)
    assert time.monotonic() - begin > (300 - sent) / 100 - 0.5
    assert stage.payloads("copies") == numbered(1, 300)
    assert capsys.readouterr().err.endswith("Replay mine is done: 300 messages.\n")
    stage.run(**slow)
    assert len(stage.payloads("copies")) == 300


def test_replays_of_one_name_are_told_apart_by_lake_and_by_plan(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"topic": "a", "into": "copies", "name": "mine", "batch": 2}
    stage.publish("a", numbered(1, 4), step=1000)
    stage.archive.take("#")
    stage.run(**asked)
    other = Stage(spark, stage.broker, tmp_path / "other")
    other.archive.take("a")
    other.run(**asked)
    assert stage.payloads("copies") == numbered(1, 4) * 2
    # Of a plan that was lost, and cannot be made again, nothing is left out.
    Path(stage.config.lake.warehouse, "replays", "mine.json").unlink()
    stage.publish("a", numbered(5, 6), step=1000)
    stage.archive.take("a")
    stage.run(**asked)
    assert sorted(stage.payloads("copies")) == sorted(numbered(1, 4) * 2 + numbered(1, 6))


def test_messages_come_as_far_apart_as_they_did(stage: Stage) -> None:
    stage.publish("a", numbered(1, 5), step=1_000_000)
    stage.archive.take("#")
    stage.run(topic="a", into="b/{topic}", rate="original", speed=2.0)
    with connect(stage.broker) as connection:
        found: Any = connection.read("b/a").column("timestamp").cast(pa.int64()).to_pylist()
    assert stage.payloads("b/a") == numbered(1, 5)
    for number, came in enumerate(found):
        assert came - found[0] >= (number * 0.5 - 1) * 1_000_000, "the first one may be a second late"
