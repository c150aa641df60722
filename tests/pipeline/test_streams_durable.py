"""The option `durable`: a broker that keeps nothing otherwise holds what is not committed in the checkpoint."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.brokers import BrokerProcess
from tests.pipeline.queries import Copy, connect, dropped, forgetful, numbered, published, waiting
from tests.pipeline.test_streams import stream_reader
from tests.waiting import wait_until

__all__ = ["forgetful"]  # a fixture

NAME = "rollups"


class Watching(Copy):
    """Looks, while a micro-batch is at work and not yet committed, at what the broker holds."""

    def take(self, batch: DataFrame, number: int) -> None:
        super().take(batch, number)
        with connect(self.broker) as connection:
            floors = connection.cursors("hall/#", name=NAME)
            for row in dict(self.batches).get(number, ()):
                assert floors[row.topic] <= row.offset, "acknowledged before it is committed"
                assert connection.topics(row.topic)[0].first <= row.offset, "gone before it is committed"


def held(broker: BrokerProcess) -> int:
    """How many messages the broker holds."""
    with connect(broker) as connection:
        return sum(one.rows for one in connection.topics("hall/#"))


def floors(broker: BrokerProcess) -> dict[str, int]:
    with connect(broker) as connection:
        return connection.cursors("hall/#", name=NAME)


def test_what_is_not_committed_is_held_and_what_is_committed_is_acknowledged(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    copy = Watching(spark, forgetful, tmp_path / "checkpoint", "hall/#", durable=NAME, maxOffsetsPerTrigger=4)
    copy.run()
    assert not copy.batches, "there is nothing yet, but from now on it is held"
    published(forgetful, hall__a=numbered(1, 6), hall__b=numbered(1, 3))
    assert held(forgetful) == 9
    copy.run()
    assert copy.sizes == [4, 4, 1]
    assert len(set(copy.seen)) == 9
    assert floors(forgetful) == {"hall/a": 7, "hall/b": 4}
    wait_until(lambda: held(forgetful) == 0)


def test_what_comes_while_the_query_is_away_is_held_for_it(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    copy = Watching(spark, forgetful, tmp_path / "checkpoint", "hall/#", durable=NAME)
    with copy.running() as query:
        wait_until(lambda: waiting(query))
        published(forgetful, hall__a=numbered(1, 3))
        copy.wait_for(3)
        wait_until(lambda: floors(forgetful) == {"hall/a": 4})
    published(forgetful, hall__a=numbered(4, 5), hall__new=["1"])
    forgetful.restart()
    wait_until(lambda: held(forgetful) == 3)
    copy.run()
    assert [(row.topic, row.offset) for row in copy.seen] == [
        *(("hall/a", offset) for offset in range(1, 6)),
        ("hall/new", 1),
    ]


def test_what_a_query_leaves_out_is_not_held_for_it(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    with connect(forgetful) as connection:
        connection.hold("hall/a", name="somebody")
        connection.publish("hall/a", numbered(1, 9))
    copy = Watching(
        spark, forgetful, tmp_path / "checkpoint", "hall/#", durable=NAME, startingOffsets='{"hall/a": 6}'
    )
    copy.run()
    assert [row.offset for row in copy.seen] == [6, 7, 8, 9]
    assert floors(forgetful) == {"hall/a": 10}
    with connect(forgetful) as connection:
        dropped(connection, "hall/a", 10)


def test_the_name_holds_until_it_is_given_up(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    first = Watching(spark, forgetful, tmp_path / "first", "hall/#", durable=NAME)
    first.run()
    published(forgetful, hall__a=numbered(1, 3))
    second = Watching(spark, forgetful, tmp_path / "second", "hall/#", durable=NAME, startingOffsets="latest")
    second.run()
    assert len(second.rows) == 3, "a new query under the same name goes on where the name stands"
    published(forgetful, hall__a=["4"])
    with connect(forgetful) as connection:
        connection.unsubscribe("hall/#", name=NAME)
        wait_until(lambda: not connection.topics("hall/#"))


def test_a_topic_that_two_filters_match_is_acknowledged_for_both(forgetful: BrokerProcess) -> None:
    reader = stream_reader(forgetful, "hall/#,hall/a,lab", durable=NAME)
    start = reader.initialOffset()
    published(forgetful, hall__a=numbered(1, 3), hall__b=["1"])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert held(forgetful) == 4
    reader.commit(end)
    with connect(forgetful) as connection:
        assert connection.cursors("hall/#", name=NAME) == {"hall/a": 4, "hall/b": 2}
        assert connection.cursors("hall/a", name=NAME) == {"hall/a": 4}
    wait_until(lambda: held(forgetful) == 0)
    reader.stop()
