"""A broker that was restored from a backup: the pipeline goes on behind the gap, where the lake lacks nothing of it."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stafeta.backup import points, restoring, taking
from stafeta.backup.destination import Destination
from stafeta.errors import DataLoss
from stafeta.pipeline.jobs.audit import audit
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.lakes import offsets
from tests.pipeline.queries import numbered, published, read


def set_back(broker: BrokerProcess, destination: Destination) -> int:
    """Restores the last backup; returns the offset at which topics go on."""
    broker.kill()
    shutil.rmtree(broker.data)
    resumed = restoring.restore(destination, points.find(destination, None), broker.data)
    broker.start()
    return resumed.offset


def test_archive_and_audit_go_on_behind_the_gap(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path, grace=3600.0)
    archiving = Archiving(spark, config, tmp_path)
    destination = Destination.of(str(tmp_path / "backups"))
    published(broker, a=numbered(1, 3), b=["x"])
    archiving.run()
    published(broker, a=["not archived"])
    taking.take(broker.data, destination)
    published(broker, a=["lost"])
    on = set_back(broker, destination)
    published(broker, a=numbered(6, 7), c=["new"])
    assert sorted(row["offset"] for row in read(spark, broker, "a").collect()) == [1, 2, 3, 4, on, on + 1]
    archiving.run()
    assert offsets(archiving.lake) == {"a": [1, 2, 3, 4, on, on + 1], "b": [1], "c": [on]}
    assert audit(spark, config, archiving.lake, "#").findings == ()


@pytest.mark.soak
def test_what_was_archived_and_is_lost_in_the_log_stays_in_the_lake(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    archiving = Archiving(spark, config_of(broker, tmp_path, grace=3600.0), tmp_path)
    destination = Destination.of(str(tmp_path / "backups"))
    published(broker, a=numbered(1, 3))
    taking.take(broker.data, destination)
    published(broker, a=["archived, and lost"])
    archiving.run()
    on = set_back(broker, destination)
    published(broker, a=["5"])
    with pytest.raises(DataLoss, match="not what was archived"):
        archiving.run()
    assert offsets(archiving.lake) == {"a": [1, 2, 3, 4]}
    other = Archiving(spark, config_of(broker, tmp_path, namespace="other"), tmp_path)
    other.run()
    assert offsets(other.lake) == {"a": [1, 2, 3, on]}
