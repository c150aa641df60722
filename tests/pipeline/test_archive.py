"""The job archive on a real broker: every message into the lake, once, and no sooner out of the log than told."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.errors import DataLoss
from stafeta.pipeline.jobs.archiving.retention import RetentionKeeper, holder
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of
from tests.pipeline.lakes import offsets, whole
from tests.pipeline.queries import connect, forgetful, in_background, numbered, published
from tests.waiting import PATIENCE, wait_until

__all__ = ["forgetful"]


@pytest.fixture
def archiving(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Archiving:
    return Archiving(spark, config_of(broker, tmp_path), tmp_path)


def test_every_message_is_archived_once_whatever_is_repeated(
    archiving: Archiving, broker: BrokerProcess
) -> None:
    lake = archiving.lake
    archiving.run()  # of an empty broker
    assert offsets(lake) == {}

    with connect(broker) as connection:
        connection.publish("$sys/pipeline/rollup", ["a report"])
        with connection.producer("upb/counted", name="counter") as producer:
            producer.send_many(numbered(1, 5))
        connection.publish("upb/plain", [b"\xff\x00"], kind="bytes")
    archiving.run()
    assert offsets(lake) == {"upb/counted": whole(1, 5), "upb/plain": [1]}
    rows = lake.table("messages").scan().to_arrow().sort_by([("topic", "ascending"), ("offset", "ascending")])
    assert rows.column("counter").to_pylist() == [1, 2, 3, 4, 5, 1]
    assert rows.column("payload").to_pylist()[-1] == b"\xff\x00"
    assert rows.column("kind").to_pylist() == ["string"] * 5 + ["bytes"]
    with connect(broker) as connection:
        stored = connection.read("upb/counted")
    assert rows.column("timestamp").to_pylist()[:5] == stored.column("timestamp").to_pylist()
    assert rows.column("source").to_pylist()[:5] == stored.column("source").to_pylist()

    archiving.forget_last_commit()
    published(broker, upb__plain=["second"], new=["first"])
    archiving.run()
    assert offsets(lake) == {"upb/counted": whole(1, 5), "upb/plain": [1, 2], "new": [1]}

    archiving.lose_checkpoint()
    published(broker, new=["second"], newer=["first"])
    archiving.run()
    assert offsets(lake) == {"upb/counted": whole(1, 5), "upb/plain": [1, 2], "new": [1, 2], "newer": [1]}
    assert lake.archived() == {
        "upb/counted": [(1, 6)],
        "upb/plain": [(1, 3)],
        "new": [(1, 3)],
        "newer": [(1, 2)],
    }


def test_a_broker_that_is_killed_costs_no_message_and_doubles_none(
    archiving: Archiving, broker: BrokerProcess
) -> None:
    def produce() -> None:
        with connect(broker) as connection, connection.producer("upb/hall") as producer:
            for start in range(0, 4_000, 100):
                producer.send_many(numbered(start + 1, start + 100))
                if start == 2_000:
                    producer.flush()
                    broker.restart()

    with archiving.running() as query, in_background(produce):
        wait_until(lambda: archiving.lake.archived() == {"upb/hall": [(1, 4_001)]}, PATIENCE)
        assert query.isActive
    assert offsets(archiving.lake) == {"upb/hall": whole(1, 4_000)}


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.soak)])
def test_hundreds_and_thousands_of_topics_are_archived(
    archiving: Archiving, broker: BrokerProcess, count: int
) -> None:
    names = [f"campus/building-{number % 40}/sensor-{number}" for number in range(count)]
    with connect(broker) as connection:
        connection.publish(None, pa.table({"topic": names * 2, "payload": ["1"] * 2 * count}))
    archiving.run()
    with connect(broker) as connection:
        connection.publish(None, pa.table({"topic": names[:3], "payload": ["2"] * 3}))
    archiving.run()
    assert offsets(archiving.lake) == {name: whole(1, 3 if name in names[:3] else 2) for name in names}
    size = Path(archiving.lake.table("messages").metadata_location.removeprefix("file://")).stat().st_size
    assert size < 100 * count  # it is written by each commit


def test_a_narrower_subscription_goes_on(archiving: Archiving, broker: BrokerProcess, tmp_path: Path) -> None:
    published(broker, a__one=["1"], b__one=["1"])
    archiving.run()
    archiving.lose_checkpoint()
    archiving.config = config_of(broker, tmp_path, subscribe="a/#,c")
    published(broker, a__one=["2"], b__one=["2"], c=["1"])
    archiving.run()
    assert offsets(archiving.lake) == {"a/one": [1, 2], "b/one": [1], "c": [1]}


# --- what the broker may collect


def first(broker: BrokerProcess, topic: str) -> int:
    with connect(broker) as connection:
        (info,) = connection.topics(topic)
        return info.first


def test_what_is_archived_is_collected_after_the_grace_period_and_not_before(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    archiving = Archiving(spark, config_of(forgetful, tmp_path, grace=3600.0), tmp_path)
    name = holder(archiving.lake)
    with connect(forgetful) as connection:
        connection.hold("#", name=name, start="earliest")  # or it would be gone before the job begins
    published(forgetful, upb__hall=numbered(1, 5))
    archiving.run()
    lake = archiving.lake

    def floor() -> int:
        return connection.cursors("#", name=name)["upb/hall"]

    def keeper() -> RetentionKeeper:  # a new one for each run of the job
        return RetentionKeeper(
            lake, archiving.config.pipeline.broker, ["#"], 3600.0, str(tmp_path / "keeper")
        )

    with connect(forgetful) as connection:
        keeper().look(10_000)
        keeper().acknowledge(connection, 13_599)
        assert floor() == 1
        connection.publish("upb/hall", numbered(6, 8))
        archiving.run()
        last = keeper()
        last.look(10_001)
        last.look(10_400)
        last.look(10_800)
        last.acknowledge(connection, 13_601)
        assert floor() == 6  # and not what was archived later
        wait_until(lambda: first(forgetful, "upb/hall") == 6)
        last.acknowledge(connection, 13_999)
        assert floor() == 6
        keeper().acknowledge(connection, 14_001)
        assert floor() == 9


def test_a_broker_that_is_away_is_told_later(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    archiving = Archiving(spark, config_of(forgetful, tmp_path, grace=3600.0), tmp_path)
    name = holder(archiving.lake)
    with connect(forgetful) as connection:
        connection.hold("#", name=name, start="earliest")
        connection.publish("upb/hall", numbered(1, 5))
    archiving.run()
    keeper = RetentionKeeper(
        archiving.lake, archiving.config.pipeline.broker, ["#"], 0.0, str(tmp_path / "keeper")
    )
    keeper.look(1e10)
    with connect(forgetful) as connection:
        connection.close()
        with pytest.raises(Exception, match="closed"):
            keeper.acknowledge(connection, 2e10)
    with connect(forgetful) as connection:
        keeper.acknowledge(connection, 2e10)
        assert connection.cursors("#", name=name) == {"upb/hall": 6}


def test_the_running_job_lets_the_broker_collect(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    archiving = Archiving(spark, config_of(forgetful, tmp_path, grace=0.0), tmp_path)
    with archiving.running():
        wait_until(lambda: _holds(forgetful, holder(archiving.lake)))
        published(forgetful, upb__hall=numbered(1, 5), upb__lab=["1"])
        wait_until(lambda: first(forgetful, "upb/hall") == 6 and first(forgetful, "upb/lab") == 2)
    assert offsets(archiving.lake) == {"upb/hall": whole(1, 5), "upb/lab": [1]}


def _holds(broker: BrokerProcess, name: str) -> bool:
    with connect(broker) as connection:
        return any(one.client == f"flight/{name}" for one in connection.subscriptions())


def test_a_log_that_was_replaced_is_told_and_not_taken_for_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its messages have offsets that the lake has already, of others."""
    with BrokerProcess(tmp_path / "first", doors=("flight",)) as broker:
        archiving = Archiving(spark, config_of(broker, tmp_path), tmp_path)
        with connect(broker) as connection:
            connection.hold("#", name=holder(archiving.lake), start="earliest")
        published(broker, upb__hall=numbered(1, 5))
        archiving.run()
    with BrokerProcess(tmp_path / "second", doors=("flight",)) as broker:
        with connect(broker) as connection:
            connection.hold("#", name=holder(archiving.lake), start="earliest")
        published(broker, upb__hall=["another"])
        for checkpoint in ("checkpoint", "new checkpoint"):
            again = Archiving(spark, config_of(broker, tmp_path), tmp_path)
            again.checkpoint = tmp_path / checkpoint
            with pytest.raises(DataLoss, match="not what was archived in this lake"):
                again.run()
        assert first(broker, "upb/hall") == 1
    assert offsets(archiving.lake) == {"upb/hall": whole(1, 5)}
