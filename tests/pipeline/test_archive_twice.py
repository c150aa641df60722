"""Two whole archive jobs with one lake and one broker, each with checkpoints of its own: both go on, and nothing is
doubled, missing or acknowledged too soon."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.errors import DataLoss
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import archive
from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.pipeline.lakes import offsets, whole
from tests.pipeline.queries import connect, forgetful, numbered, published
from tests.pipeline.runners import configured, running
from tests.waiting import wait_until

__all__ = ["forgetful"]

ROUNDS = 3


def test_two_archives_of_one_lake_go_on_side_by_side(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """Without a time of grace one of them lets the broker go of what the other is about to read."""
    first, second = (
        configured(
            forgetful, tmp_path / "lake", "pipeline.grace=0s", f"pipeline.checkpoints={tmp_path / name}"
        )
        for name in ("first", "second")
    )
    lake = Lake(first.lake)
    other = replace(archive.JOB, name="other")  # Spark runs no two queries of one name
    with (
        running(spark, first, archive.JOB) as one,
        running(spark, second, other) as two,
        connect(forgetful) as connection,
    ):
        wait_until(connection.subscriptions)  # before that, the broker keeps nothing
        for number in range(ROUNDS):
            connection.publish("a", numbered(1, 5))
            connection.publish(f"b/{number}", ["x"])
            wait_until(lambda end=5 * (number + 1): lake.archived().get("a") == [(1, end + 1)])  # type: ignore[misc]
        name = holder(lake)
        wait_until(lambda: connection.cursors("#", name=name).get("a") == 5 * ROUNDS + 1)
        assert [info.client for info in connection.subscriptions()] == [f"flight/{name}"]
        for run, job in ((one, "archive"), (two, "other")):
            run.wait_for(job, "running")
            assert not {*run.states(job)} & {"failed", "finished"}, run.told
    assert offsets(lake) == {"a": whole(1, 5 * ROUNDS)} | {f"b/{number}": [1] for number in range(ROUNDS)}
    assert audit(spark, first, lake, "#").findings == ()


def test_a_job_that_plans_anew_is_started_again_if_its_query_misses_messages_but_not_if_its_start_does(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    starts = 0

    def misses(_: DataFrame, __: int) -> None:
        raise DataLoss("5 of the messages 11 to 15 are gone.")

    def start(context: Context) -> Sequence[StreamingQuery]:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise DataLoss("Neither the lake nor the log has them.")
        return [context.start(context.stream("a").writeStream.foreachBatch(misses))]

    published(broker, a=["1"])
    config = configured(broker, tmp_path)
    with running(spark, config, Job("again", "", start, replans=True)) as run:
        assert run.wait_for("again", "failed").error == "Neither the lake nor the log has them."
    assert run.states("again") == ["starting", "running", "waiting", "starting", "failed"]
