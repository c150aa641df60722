"""Faults that lie between the lake and what is around it: another broker, windows, checkpoints."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.jobs import rollup
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.jobs.auditing import checkpoints, offsets, windows
from stafeta.pipeline.lake import archived, files
from stafeta.pipeline.lake.tables import TABLES
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.queries import address, connect, dropped, forgetful, numbered, published
from tests.pipeline.test_rollup import Hand
from tests.pipeline.test_spark_log import planned
from tests.waiting import wait_until

__all__ = ["forgetful"]


def test_another_log_that_has_no_message_in_common_with_the_lake_is_found(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """The lake has 1 to 3 of the one, the log 4 and 5 of the other: nothing is missing between them."""
    config = config_of(forgetful, tmp_path, grace=3600.0)
    archiving = Archiving(spark, config, tmp_path)
    with connect(forgetful) as broker:
        broker.hold("a", name="somebody", start="earliest")
    published(forgetful, a=numbered(1, 3))
    archiving.run()
    forgetful.stop()
    shutil.rmtree(forgetful.data)
    forgetful.start()
    with connect(forgetful) as broker:
        broker.hold("a", name="somebody", start="earliest")
        broker.publish("a", numbered(11, 15))
        dropped(broker, "a", 4)
    # And of the lake's own lists and files, one of each is gone.
    table = archiving.lake.table("messages")
    found = audit(spark, config, archiving.lake, "#").findings
    assert [(one.check, one.topic, one.what) for one in found] == [("agreement", "", offsets.UNRELATED)]
    (file,) = (task.file.file_path for task in table.scan().plan_files())
    Path(file.removeprefix("file://")).unlink()
    shutil.rmtree(Path(table.location().removeprefix("file://")) / "archived")
    archived._read.cache_clear()
    found = audit(spark, config, archiving.lake, "#").findings
    assert {one.check for one in found} == {"agreement", "files"}


def test_windows_that_are_missing_doubled_or_changed_in_the_lake_are_found(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    hand = Hand(broker, tmp_path)
    config = config_of(broker, tmp_path)
    names = ("changed", "doubled", "missing", "sound")
    for number in range(3):  # the windows from 0, 10 and 20 on; the last reading closes the last
        times = (10 * number, 10 * number + 5, *((35,) if number == 2 else ()))
        hand.roll(number, *((name, second) for name in names for second in times))
    published(broker, rollup__10s__sound=['{"topic": "sound"}'])  # by somebody else, which is no fault
    table, rows = hand.lake.table("rollups"), hand.lake.frame(spark, "rollups")
    second = sf.expr("start = timestamp'2026-11-16T08:00:10Z'")
    rows = rows.withColumn(
        "max", sf.when(second & (sf.col("topic") == "changed"), 7.5).otherwise(sf.col("max"))
    )
    rows = rows.where(~(second & (sf.col("topic") == "missing")))
    table.delete()
    table.add_files(
        files.write(
            rows.union(rows.where(second & (sf.col("topic") == "doubled"))),
            TABLES["rollups"],
            table.location(),
        )
    )
    found = audit(spark, config, hand.lake, "#").findings
    assert [(one.check, one.topic, one.what, one.where, one.count) for one in found] == [
        ("windows", "rollup/10s/changed", windows.UNLIKE, "2", 1),
        ("windows", "rollup/10s/missing", windows.UNKNOWN, "2", 1),
        ("windows", "doubled", f"{windows.TWICE}: those of 10s, from 2026-11-16T08:00:10Z on", "", 1),
    ]


def test_windows_of_a_rollup_that_wrote_to_another_lake_before_are_not_missed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    hand, other = Hand(broker, tmp_path), Hand(broker, tmp_path / "other")
    hand.roll(0, ("a", 0), ("a", 15))
    hand.roll(1, ("a", 25), lake=other.lake)
    assert not audit(spark, config_of(broker, tmp_path / "other"), other.lake, "#").findings
    table = other.lake.table("rollups")
    table.delete()
    (found,) = audit(spark, config_of(broker, tmp_path / "other"), other.lake, "#").findings
    assert (found.what, found.where) == (windows.UNKNOWN, "2")


def test_windows_that_were_added_to_the_lake_and_never_published_are_found(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rollup died between the two, and its checkpoint is lost."""
    hand, config = Hand(forgetful, tmp_path), config_of(forgetful, tmp_path)

    def unpublished(number: int, second: float) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(rollup, "put_aside", lambda *batch: lambda: None)
            hand.roll(number, ("a", second))

    with connect(forgetful) as connection:
        connection.hold("rollup/#", name="somebody", start="earliest")
    hand.roll(0, ("a", 0), ("a", 15))
    unpublished(1, 25)
    found = audit(spark, config, hand.lake, "#").findings
    assert [(one.check, one.topic, one.what, one.count) for one in found] == [
        ("windows", "rollup/10s/a", f"{windows.UNPUBLISHED}: from 2026-11-16T08:00:10Z on", 1)
    ]
    hand.roll(1)  # it is started again, and goes on

    first_look, looks = windows.unpublished, []

    def looking(*arguments: Any) -> Any:
        looks.append(first_look(*arguments))
        hand.roll(2)
        return looks[-1]

    unpublished(2, 35)
    with monkeypatch.context() as patched:
        patched.setattr(windows, "unpublished", looking)
        assert not audit(spark, config, hand.lake, "#").findings, "it was published meanwhile"
    assert [len(look) for look in looks] == [1, 0]

    unpublished(3, 45)
    hand.roll(4, ("a", 55))
    with connect(forgetful) as connection:
        connection.acknowledge("rollup/#", {"rollup/10s/a": 2}, name="somebody")
        wait_until(lambda: connection.topics("rollup/10s/a")[0].first == 2)
    assert not audit(spark, config, hand.lake, "#").findings, "nobody knows what was in the topic"


def test_checkpoints_that_are_older_or_of_another_broker_are_found(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    def found() -> list[str]:
        return [one.what for one in checkpoints.older(address(broker), ["#"], str(tmp_path))]

    assert found() == []
    assert not list(tmp_path.glob("*.json")), "looking gives nobody a name"
    published(broker, a=numbered(1, 5))
    for job in ("rollup", "alerts", "deadletter"):
        name = checkpoint_files.durable_name(str(tmp_path), job)
        (tmp_path / job).mkdir()
        planned(tmp_path / job, 0, a=4)
        with connect(broker) as connection:
            connection.hold("#", name=name, start="earliest")
            connection.acknowledge("#", {"a": 4}, name=name)
    assert found() == []
    planned(tmp_path / "rollup", 0, a=3)
    with connect(broker) as connection:
        connection.unsubscribe("#", name=name)
    assert found() == [
        f"that of rollup {checkpoints.OLDER}",
        f"that of deadletter {checkpoints.OTHER_BROKER}",
    ]
