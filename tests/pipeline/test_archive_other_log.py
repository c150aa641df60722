"""A log that is not the one that was archived, and is longer: the archive mixes nothing."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.errors import DataLoss
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.jobs.auditing.findings import Finding
from stafeta.pipeline.jobs.auditing.offsets import OTHER_LOG, UNLIKE
from stafeta.pipeline.runner.failures import failure_of
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.lakes import offsets, whole
from tests.pipeline.queries import numbered, published
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
        assert "Message 4 of topic a is another one in the log than in the lake" in failure.sentence
    with pytest.raises(DataLoss, match=r"Message 4 of topic a is another one .* another lake\.namespace"):
        archiving.run()
    with pytest.raises(DataLoss, match="Message 4 of topic a"):  # which is no loss that one could accept
        archiving.run(accept_loss=True)
    assert offsets(archiving.lake) == {"a": whole(1, 4), "same": [1]}
    assert [(one.check, one.topic, one.what, one.where) for one in audited()] == [
        ("agreement", "a", UNLIKE, "3-4")
    ]
    other = Archiving(spark, config_of(broker, tmp_path, namespace="other"), tmp_path)
    other.run()
    assert offsets(other.lake) == {"a": whole(1, 13), "same": [1]}
    broker.stop()
    copy(tmp_path / "copy", broker.data)  # which is shorter than the lake
    broker.start()
    assert [(one.check, one.topic, one.what, one.where) for one in audited()] == [
        ("agreement", "a", OTHER_LOG, "3-4")
    ]
