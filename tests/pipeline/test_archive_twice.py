"""Two whole archive jobs with one lake and one broker, each with checkpoints of its own: both go on, and nothing is
doubled, missing or acknowledged too soon."""

from pathlib import Path

from pyspark.sql import SparkSession

from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.audit import audit
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.lakes import offsets, whole
from tests.pipeline.queries import connect, forgetful, numbered
from tests.waiting import wait_until

__all__ = ["forgetful"]

ROUNDS = 3


def test_two_archives_of_one_lake_go_on_side_by_side(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    one = Archiving(spark, config, tmp_path / "one")
    other = Archiving(spark, config, tmp_path / "other", "other")  # Spark runs no two queries of one name
    with one.running() as first, other.running() as second, connect(forgetful) as connection:
        for number in range(ROUNDS):
            connection.publish("a", numbered(1, 5))
            connection.publish(f"b/{number}", ["x"])
            wait_until(lambda end=5 * (number + 1): one.lake.archived().get("a") == [(1, end + 1)])  # type: ignore[misc]
        # Each comes to the end of the log, and finds there what the other has put into the lake.
        first.processAllAvailable()
        second.processAllAvailable()
        assert first.isActive
        assert second.isActive
        wait_until(lambda: connection.cursors("#", name=holder(one.lake))["a"] == 5 * ROUNDS + 1)
        assert [info.client for info in connection.subscriptions()] == [f"flight/{holder(one.lake)}"]
    assert offsets(one.lake) == {"a": whole(1, 5 * ROUNDS)} | {f"b/{number}": [1] for number in range(ROUNDS)}
    assert audit(spark, config, one.lake, "#").findings == ()
