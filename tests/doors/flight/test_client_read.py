"""The native client: reading."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.errors import ConfigError, InvalidRequest, NoSuchTopic, StafetaError
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Place, payloads
from tests.doors.zeromq.peers import Peer as ZeroMQPeer
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def broker(place: Place) -> Iterator[Connection]:
    host, port = place
    with stafeta.connect(f"grpc://{host}:{port}", timeout=PATIENCE) as connection:
        yield connection


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": datetime(2026, 1, 1)}, ConfigError),  # noqa: DTZ001
        ({"start": "soon"}, ConfigError),
        ({"end": "latest"}, ConfigError),
        ({"columns": ["colour"]}, InvalidRequest),
        ({"limit": -1}, InvalidRequest),
    ],
)
def test_reading_with_wrong_options(
    broker: Connection, topic: str, options: Any, error: type[StafetaError]
) -> None:
    broker.publish(topic, ["x"])
    with pytest.raises(error):
        broker.read(topic, **options)


def test_a_topic_that_does_not_exist(broker: Connection, topic: str) -> None:
    with pytest.raises(NoSuchTopic, match=topic):
        broker.read(topic)
    with pytest.raises(NoSuchTopic):
        list(broker.batches(topic))


def test_a_part_of_a_topic(broker: Connection, topic: str) -> None:
    broker.publish(topic, list(map(str, range(10))))
    assert payloads(broker.read(topic, start=3, end=5)) == [b"2", b"3"]
    assert payloads(broker.read(topic, start=9)) == [b"8", b"9"]
    assert payloads(broker.read(topic, limit=2)) == [b"0", b"1"]
    assert payloads(broker.read(topic, start="latest")) == []
    table = broker.read(topic, columns=["payload"], start=10)
    assert table.to_pydict() == {"payload": [b"9"]}
    assert broker.read(topic, start="latest").schema.names == [
        "topic", "offset", "timestamp", "producer", "source", "kind", "payload",
    ]  # fmt: skip


def test_reading_by_time(broker: Connection, topic: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + timedelta(minutes=number) for number in range(10)]
    broker.publish(topic, pa.table({"payload": list(map(str, range(10))), "timestamp": times}))
    found = broker.read(topic, start=times[2], end=times[5])
    assert payloads(found) == [b"2", b"3", b"4"]
    assert payloads(broker.read(topic, start=times[8])) == [b"8", b"9"]


def test_reading_a_filter(broker: Connection, topic: str) -> None:
    for number in range(6):
        broker.publish(f"{topic}/{number % 2}", [str(number)])
    assert payloads(broker.read(f"{topic}/+")) == [b"%d" % number for number in range(6)]
    assert broker.read(f"{topic}/+", limit=2, columns=["topic"]).to_pydict() == {
        "topic": [f"{topic}/0", f"{topic}/1"]
    }


def test_following_a_topic(broker: Connection, topic: str) -> None:
    found: list[Any] = []
    reading = broker.batches(topic, follow=True, columns=["payload"])
    for number in range(3):
        broker.publish(topic, [str(number)])
        while len(found) <= number:
            found += next(reading).column("payload").to_pylist()
    before = broker.stats()["streams"]
    reading.close()  # type: ignore[attr-defined]
    assert found == [b"0", b"1", b"2"]
    wait_until(lambda: broker.stats()["streams"] < before)


def test_topics_and_stats(broker: Connection, topic: str) -> None:
    broker.publish(topic, ["x", "y"])
    (info,) = broker.topics(topic)
    assert (info.topic, info.first, info.next, info.rows) == (topic, 1, 3, 2)
    assert topic in {one.topic for one in broker.topics()}
    assert broker.stats()["version"] == stafeta.__version__


def test_durable_subscriptions(flying: BrokerProcess, broker: Connection, topic: str, name: str) -> None:
    def told() -> list[tuple[str, str]]:
        return [(one.client, one.filter) for one in broker.subscriptions() if one.filter.startswith(topic)]

    assert told() == []
    broker.publish(topic, ["x", "y"])
    with broker.subscribe(topic):  # for a while only
        assert told() == []
    broker.hold(f"{topic}/#", name=name, start="earliest")
    with ZeroMQPeer(flying.address) as other:
        other.acked("SUB", topic, name)
    assert sorted(told()) == [(f"flight/{name}", f"{topic}/#"), (name, topic)]
    (info,) = (one for one in broker.subscriptions() if one.filter == f"{topic}/#")
    assert info.cursors == ((topic, 1, (), 1, 3),)
    broker.unsubscribe(f"{topic}/#", name=name)
    assert told() == [(name, topic)]
