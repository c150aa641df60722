"""Checkpoints that were put back from a copy, or are of another broker: jobs end with a sentence, and write nothing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stafeta.config.options import Alerts, Deadletter
from stafeta.config.options import Rollup as Sizes
from stafeta.errors import AlreadyWritten, DataLoss, Unsound
from stafeta.pipeline.checkpoint_age import check_age
from stafeta.pipeline.connector.sink import write_once
from stafeta.pipeline.job import MARK, Context, Job
from stafeta.pipeline.job import job as marked
from stafeta.pipeline.jobs import alerts, archive, deadletter, rollup
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.runner.failures import failure_of
from tests.brokers import BrokerProcess
from tests.pipeline.archives import config_of
from tests.pipeline.lakes import offsets
from tests.pipeline.queries import address, connect, numbered, payloads, published
from tests.pipeline.test_spark_log import planned
from tests.waiting import PATIENCE

NAME = "pipeline/rollup/mine"


@pytest.fixture
def check(broker: BrokerProcess, tmp_path: Path) -> Callable[[], None]:
    """Of a job that has acknowledged two messages of topic a, and none of b."""
    published(broker, a=numbered(1, 3), b=["1"])
    with connect(broker) as connection:
        connection.hold("#", name=NAME, start="earliest")
        connection.acknowledge("#", {"a": 3}, name=NAME)
    return lambda: check_age(address(broker), NAME, ["#"], str(tmp_path))


def test_a_checkpoint_that_has_what_was_acknowledged_is_gone_on_with(
    check: Callable[[], None], tmp_path: Path
) -> None:
    check()  # there is none yet
    planned(tmp_path, 0, a=3)
    check()
    planned(tmp_path, 1, a=4, b=2)  # and was killed before it acknowledged that
    check()


def test_a_checkpoint_that_lacks_what_was_acknowledged_is_not(
    check: Callable[[], None], tmp_path: Path
) -> None:
    planned(tmp_path, 0, a=1, b=1)
    planned(tmp_path, 1, a=2, b=2)
    with pytest.raises(
        Unsound, match=r"ends with message 1 of topic 'a', and .*/mine has acknowledged 2\. It"
    ) as raised:
        check()
    assert failure_of(raised.value).lasting


def test_a_broker_that_does_not_know_the_job_is_another_one(
    check: Callable[[], None], broker: BrokerProcess, tmp_path: Path
) -> None:
    planned(tmp_path, 0, a=3)
    with connect(broker) as connection:
        connection.unsubscribe("#", name=NAME)
    with pytest.raises(DataLoss, match=r"of another broker, .* or remove the checkpoint") as raised:
        check()
    assert failure_of(raised.value).lasting


def test_other_rows_under_the_number_of_a_micro_batch_are_refused_for_good(broker: BrokerProcess) -> None:
    def write(number: int, before: int | None, *values: str) -> None:
        columns = {"topic": ["a"] * len(values), "payload": list(values), "kind": ["json"] * len(values)}
        write_once(address(broker), "job", number, pa.RecordBatch.from_pydict(columns), before)

    write(0, None, "1")
    write(4, 0, "2", "3")
    write(4, 0, "2", "3")
    for number, before, values in ((4, 0, ("2", "4")), (3, 0, ("5",)), (5, 0, ("6",)), (4, None, ("7",))):
        with pytest.raises(
            AlreadyWritten, match=rf"micro-batch 4 of job, which now writes {number}"
        ) as raised:
            write(number, before, *values)
        assert failure_of(raised.value).lasting
    write(6, 4, "4")
    assert payloads(broker, "a") == ["1", "2", "3", "4"]


# --- all jobs


@marked(subscribe="a", into="copies")
def mine(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("text AS value")


JOBS: tuple[Job, ...] = (archive.JOB, rollup.JOB, alerts.JOB, deadletter.JOB, getattr(mine, MARK))
SCHEMAS = "[[schema]]\ntopics = 'b'\ninline = {type = 'string'}\n"
RULES = '[[rule]]\nname = "hot"\ntopics = "a"\nabove = 2\n'


class Pipeline:
    """All streaming jobs, with checkpoints that are put back."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self._spark, self._broker = spark, broker
        self.checkpoints, self._copy = folder / "checkpoints", folder / "copy"
        (folder / "alerts.toml").write_text(RULES)
        (folder / "schemas.toml").write_text(SCHEMAS)
        self.config = replace(
            config_of(broker, folder, subscribe="a,b"),
            rollup=Sizes(sizes=(0.01,), delay=0.0),
            alerts=Alerts(rules=str(folder / "alerts.toml")),
            deadletter=Deadletter(schemas=str(folder / "schemas.toml")),
        )
        self.lake = Lake(self.config.lake)

    def run(self, *jobs: Job) -> None:
        """What is there, by all at once."""
        queries = [query for job in jobs for query in job.start(self._context(job))]
        for query in queries:
            assert query.awaitTermination(PATIENCE), "a job does not end"

    def refusal(self, job: Job) -> str:
        """What a job says that does not begin."""
        with pytest.raises(Unsound) as raised:
            job.start(self._context(job))
        return str(raised.value)

    def save(self) -> None:
        shutil.copytree(self.checkpoints, self._copy)

    def put_back(self) -> None:
        shutil.rmtree(self.checkpoints)
        shutil.copytree(self._copy, self.checkpoints)

    def remove(self) -> None:
        """The checkpoints, but not what the jobs are called."""
        for job in JOBS:
            shutil.rmtree(self.checkpoints / job.name)

    def outcome(self) -> dict[str, list[str]]:
        """All that jobs have written, without times."""
        with connect(self._broker) as connection:
            topics = [
                topic.topic
                for one in ("rollup/#", "alerts/#", "dead/#", "copies")
                for topic in connection.topics(one)
            ]
        found = {topic: payloads(self._broker, topic) for topic in topics}
        found["windows"] = sorted(
            map(str, self.lake.table("rollups").scan().to_arrow().column("last").to_pylist())
        )
        found["dead"] = sorted(
            map(str, self.lake.table("dead").scan().to_arrow().column("offset").to_pylist())
        )
        return found

    def _context(self, job: Job) -> Context:
        return Context(self._spark, self.config, job.name, str(self.checkpoints / job.name), once=True)


def sent(broker: BrokerProcess, *numbers: int) -> None:
    """Each number, as a reading of a, and as something that b's schema does not allow."""
    with connect(broker) as connection:
        for number in numbers:
            connection.publish("a", [str(number)], kind="int")
            connection.publish("b", [json.dumps(number)], kind="json")


def test_a_rollup_does_not_go_on_from_a_checkpoint_that_was_put_back(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, broker, tmp_path)
    for number in (1, 2):
        sent(broker, number)
        pipeline.run(rollup.JOB)
        if number == 1:
            pipeline.save()
    pipeline.put_back()
    assert "is older than what its job has done" in pipeline.refusal(rollup.JOB)


@pytest.mark.soak
def test_no_job_goes_on_from_a_checkpoint_that_was_put_back(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, broker, tmp_path)
    sent(broker, 1, 3)
    pipeline.run(*JOBS)
    pipeline.save()
    sent(broker, 1, 3, 1)
    pipeline.run(*JOBS)
    before = pipeline.outcome()
    pipeline.put_back()
    for job in JOBS[1:]:
        assert "is older than what its job has done" in pipeline.refusal(job)
    pipeline.run(archive.JOB)  # which goes by the lake
    assert pipeline.outcome() == before
    assert offsets(pipeline.lake)["a"] == [1, 2, 3, 4, 5]
    pipeline.remove()
    sent(broker, 4)
    pipeline.run(*JOBS)
    assert payloads(broker, "copies") == ["1", "3", "1", "3", "1", "4"]
    states = [json.loads(one)["state"] for one in payloads(broker, "alerts/hot/a")]
    assert sorted(states) == ["cleared"] * 2 + ["raised"] * 3
