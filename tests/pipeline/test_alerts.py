"""The job alerts with Spark and a broker: raised and cleared once each, whatever happens meanwhile."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.errors import Unsound
from stafeta.pipeline.jobs.alerting.rules import parse
from stafeta.pipeline.jobs.batches import reading_source
from tests.brokers import BrokerProcess
from tests.pipeline import former_alerts
from tests.pipeline.alarms import BEGIN, Alarms, sent
from tests.pipeline.queries import connect
from tests.waiting import PATIENCE, wait_until

VALUED = """
[[rule]]
name = "hot"
topics = "hall/+"
above = 30
hysteresis = 2

[[rule]]
name = "cold"
topics = "hall/+"
below = 10

[[rule]]
name = "odd"
topics = "hall/#"
outside = [12, 28]
severity = "info"

[[rule]]
name = "jump"
topics = "hall/#"
changed_by_more_than = 15

[[rule]]
name = "unusual"
topics = "#"
z_score = 4
window = "1m"
"""
HOT = """
[[rule]]
name = "hot"
topics = "hall/+"
above = 30
hysteresis = 2
"""
SILENT = """
[[rule]]
name = "gone"
topics = "hall/#"
silent_for = "2s"
severity = "critical"
"""
QUIET = [20.0, 21.0] * 5
# Value and second of what follows: the same twice (11, 12), one that is late (13), and back (14 on).
COURSE = [(40.0, 11), (40.0, 11), (20.0, 3), (20.0, 14), (21.0, 15), (5.0, 16), (20.5, 17), (20.5, 18)]
EXPECTED = {
    "hot": [("raised", 11), ("cleared", 14)],
    "cold": [("raised", 16), ("cleared", 17)],
    "odd": [("raised", 11), ("cleared", 14), ("raised", 16), ("cleared", 17)],
    "jump": [
        *[("raised", 11), ("cleared", 12), ("raised", 14), ("cleared", 15), ("raised", 16), ("cleared", 18)],
    ],
    "unusual": [("raised", 11), ("cleared", 12)],
}


FAR = "/".join(["hall", *["x" * 60] * 4])  # with alerts/odd before it, too long for a name


def by_rule(alarms: Alarms) -> dict[str, list[tuple[str, int]]]:
    """State and offset of each rule's alerts on hall/a."""
    found: dict[str, list[tuple[str, int]]] = {}
    for rule, topic, state, offset in alarms.told():
        assert topic == "hall/a"
        found.setdefault(rule, []).append((state, offset))
    return found


def test_every_kind_is_raised_and_cleared_once_with_duplicates_late_readings_restarts_and_new_rules(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some micro-batches have enough messages to be jobs of Spark's."""
    monkeypatch.setattr(reading_source, "FEW", 6)
    alarms = Alarms(spark, broker, tmp_path, VALUED)
    sent(broker, "hall/a", *QUIET, at=range(1, 11))
    sent(broker, "rollup/1m/hall", *QUIET, 99.0)
    sent(broker, "hall", *QUIET)
    for part in (COURSE[:4], COURSE[4:]):
        sent(broker, "hall/a", *[value for value, _ in part], at=[second for _, second in part])
        query = alarms.run(batch=16)
        assert bool(jobs_of(spark, query)) == (part == COURSE[:4]), "only the first had more than that"
        broker.restart()
        alarms.forget_last_commit()
    soon = (datetime.now(UTC) + timedelta(minutes=50) - BEGIN).total_seconds()
    sent(broker, FAR, 25.0, 50.0, at=[soon, 2])  # which a time that is ahead does not make late
    assert alarms.figures() == {"alerts": sum(map(len, EXPECTED.values())), "late": 1, "ahead": 0}
    alarms.run()
    assert by_rule(alarms) == EXPECTED
    assert alarms.figures() == {"alerts": sum(map(len, EXPECTED.values())) + 2, "late": 1, "ahead": 1}

    hot = {"rule": "hot", "topic": "hall/a", "kind": "above", "limit": 30.0, "severity": "warning"}
    raised = {"state": "raised", "value": 40.0, "offset": 11, "time": "2026-11-16T08:00:11Z"}
    cleared = {"state": "cleared", "value": 20.0, "offset": 14, "time": "2026-11-16T08:00:14Z"}
    assert alarms.payloads("alerts/hot/#") == [
        hot | raised | {"message": "hall/a is 40, above 30."},
        hot | cleared | {"since": raised["time"], "message": "hall/a: hot is over."},
    ]

    alarms.rules = '[[rule]]\nname = "odd"\ntopics = "hall/#"\noutside = [12, 60]'
    sent(broker, FAR, 50.0, at=[3])
    alarms.run()
    odd = [(one["topic"], one["state"], one["limit"], one["offset"]) for one in alarms.payloads("alerts/odd")]
    assert odd == [(FAR, "raised", [12.0, 28.0], 2), (FAR, "cleared", [12.0, 60.0], 3)]


def jobs_of(spark: SparkSession, query: StreamingQuery) -> list[int]:
    """The jobs of Spark's that a query has begun since it was started."""
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))


def test_silence_is_raised_once_and_a_job_does_not_take_its_own_absence_for_it(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    alarms = Alarms(spark, broker, tmp_path, SILENT)
    raised = [("gone", "hall/a", "raised", 1)]
    back = [*raised, ("gone", "hall/a", "cleared", 2)]
    sent(broker, "hall/a", 20.0)
    with connect(broker) as connection:
        connection.publish("hall/b", ["no number"])
    with alarms.running() as query:
        wait_until(lambda: len(alarms.told()) == 2)
        assert jobs_of(spark, query) == [], "for one message each"
        broker.restart()
    sent(broker, "hall/a", 21.0, 22.0)
    alarms.run(batch=1)
    assert alarms.told("gone/hall/a") == back
    deadline = time.monotonic() + 2.5
    sent(broker, "hall/a", *QUIET)
    wait_until(lambda: time.monotonic() > deadline)
    with alarms.running(batch=4):
        wait_until(lambda: len(alarms.told("gone/hall/a")) > 2)
    last = ("gone", "hall/a", "raised", 13)
    assert alarms.told("gone/hall/a") == [*back, last], "only when nothing waited in the log any more"
    assert alarms.told("gone/hall/b") == [("gone", "hall/b", "raised", 1)], "and never again"
    (first, *_) = alarms.payloads("alerts/gone/hall/a")
    assert first["message"] == "hall/a has been silent for 2s."
    assert (first["limit"], first["value"], first["severity"]) == ("2s", None, "critical")


def test_a_checkpoint_in_which_spark_kept_the_state_is_gone_on_with(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Its last micro-batch has written its alert, but is not committed."""
    alarms = Alarms(spark, broker, tmp_path, HOT + SILENT)
    sent(broker, "hall/a", 40.0, 20.0)
    former = former_alerts.start(alarms.context(batch=1), parse(alarms.rules))
    assert former.awaitTermination(PATIENCE)
    alarms.forget_last_commit()
    before = [("hot", "hall/a", "raised", 1), ("hot", "hall/a", "cleared", 2)]
    assert alarms.told("hot/#") == before
    sent(broker, "hall/a", 30.0, 50.0)
    with alarms.running():
        wait_until(lambda: alarms.told("gone/#")[-1:] == [("gone", "hall/a", "raised", 4)])
    assert alarms.told("hot/#") == [*before, ("hot", "hall/a", "raised", 4)], (
        "none is lost, and none there twice"
    )
    assert not (tmp_path / "checkpoint" / "state").exists()


def test_a_state_of_sparks_that_cannot_be_read_ends_the_job_and_is_left_as_it_is(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    alarms = Alarms(spark, broker, tmp_path, HOT)
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "state" / "0").mkdir(parents=True)
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "7").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(Unsound, match=r"an earlier version .* remove the checkpoint"):
        alarms.run()
    assert (checkpoint / "state").exists()
    assert (checkpoint / "commits" / "7").exists()
