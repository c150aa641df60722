"""A log that is not the one that was archived, and is longer: the archive mixes nothing."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.errors import DataLoss
from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.jobs.auditing.findings import Finding
from stafeta.pipeline.jobs.auditing.offsets import OTHER_LOG, UNLIKE, UNRELATED
from stafeta.pipeline.runner.failures import failure_of
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.lakes import offsets, whole
from tests.pipeline.queries import connect, numbered, published
from tests.waiting import wait_until


def copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def test_a_log_that_was_put_back_and_has_grown_since_is_not_archived_behind_the_other(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path, grace=3600.0)
    archiving = Archiving(spark, config, tmp_path)

    def audited() -> Sequence[Finding]:
        return audit(spark, config, archiving.lake, "#").findings

    published(broker, a=numbered(1, 2), same=["x"])
    archiving.run()
    broker.stop()
    copy(broker.data, tmp_path / "copy")
    broker.start()
    published(broker, a=numbered(3, 4))
    with archiving.running() as query:
        wait_until(lambda: archiving.lake.archived().get("a") == [(1, 5)])
        broker.stop()
        copy(tmp_path / "copy", broker.data)
        broker.start()
        published(broker, a=numbered(30, 40))  # beyond what the query has read
        wait_until(lambda: not query.isActive)
        failure = failure_of(query.exception() or AssertionError())
        assert (type(failure.error), failure.lasting) == (DataLoss, True)
        # The second, where it is looked at before it has grown.
        sentences = (
            "The broker's data is not what was archived in this lake",
            "log is another one than before",
        )
        assert any(sentence in failure.sentence for sentence in sentences)
    with pytest.raises(DataLoss, match=r"not what was archived .* another lake\.namespace"):
        archiving.run()
    with pytest.raises(DataLoss, match="not what was archived"):  # which is no loss that one could accept
        archiving.run(accept_loss=True)
    assert offsets(archiving.lake) == {"a": whole(1, 4), "same": [1]}
    assert [(one.check, one.topic, one.what, one.where) for one in audited()] == [
        ("agreement", "a", UNLIKE, "3-4"),
        ("agreement", "", UNRELATED, ""),
    ]
    other = Archiving(spark, config_of(broker, tmp_path, namespace="other"), tmp_path)
    other.run()
    assert offsets(other.lake) == {"a": whole(1, 13), "same": [1]}
    broker.stop()
    copy(tmp_path / "copy", broker.data)  # which is shorter than the lake
    broker.start()
    assert [(one.check, one.topic, one.what, one.where) for one in audited()] == [
        ("agreement", "a", OTHER_LOG, "3-4"),
        ("agreement", "", UNRELATED, ""),
    ]


def test_what_the_lake_has_is_all_that_the_log_must_have_and_no_other_log_is_acknowledged(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    archiving = Archiving(spark, config_of(broker, tmp_path, grace=0.0), tmp_path)
    published(broker, a=numbered(1, 2))
    archiving.run()
    broker.stop()
    copy(broker.data, tmp_path / "copy")
    for lost in (3, 5):  # in two lives of the broker
        broker.start()
        published(broker, a=numbered(lost, lost + 1))
        broker.stop()
    copy(tmp_path / "copy", broker.data)
    broker.start()
    published(broker, a=numbered(30, 31))  # in the place of messages that the lake never had
    archiving.run()
    assert offsets(archiving.lake) == {"a": whole(1, 4)}

    broker.stop()
    copy(tmp_path / "copy", broker.data)
    broker.start()
    published(broker, a=numbered(300, 310))  # in the place of messages that it has
    with connect(broker) as connection:
        before = connection.cursors("#", name=holder(archiving.lake))
        with pytest.raises(DataLoss):
            archiving.acknowledge()
        assert connection.cursors("#", name=holder(archiving.lake)) == before
    assert before["a"] <= 3

    broker.stop()
    shutil.rmtree(broker.data)
    broker.start()
    published(broker, b=numbered(1, 3))
    with pytest.raises(DataLoss, match="not what was archived"):  # though there is no topic that both have
        archiving.run()
    with connect(broker) as connection:
        assert not connection.subscriptions()
