"""What a door has promised holds when the broker is killed and comes back."""

from collections.abc import Iterator

import pytest

from tests.brokers import BrokerProcess
from tests.conformance import zeromq
from tests.conformance.dialects import Connect, Dialect, new_name
from tests.conformance.every import DIALECTS, DOORS, each


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mortal") / "data", doors=DOORS) as process:
        yield process


@each("receiving", lambda dialect: dialect.durable)
def test_what_anyone_published_while_a_subscriber_was_away_waits_for_it(
    mortal: BrokerProcess, connect: Connect, topic: str, receiving: Dialect
) -> None:
    name = new_name()
    with connect(zeromq.TEXT, mortal) as witness:
        witness.subscribe(topic)
        with connect(receiving, mortal, name) as receiver:
            receiver.subscribe(topic)
            witness.publish(topic, "seen")
            assert receiver.texts(1) == witness.texts(1) == ["seen"]
        sent = [f"{dialect} was here" for dialect in DIALECTS]
        for dialect, text in zip(DIALECTS, sent, strict=True):
            with connect(dialect, mortal) as publisher:
                publisher.publish(topic, text)
                assert witness.texts(1) == [text]
    mortal.restart()
    with connect(receiving, mortal, name) as receiver, connect(zeromq.JSON, mortal) as publisher:
        receiver.resume(topic)
        publisher.publish(topic, "newer")
        assert receiver.texts(len(sent) + 1) == [*sent, "newer"]


@each("receiving", lambda dialect: dialect.durable)
def test_what_was_received_is_not_received_again(
    mortal: BrokerProcess, connect: Connect, topic: str, receiving: Dialect
) -> None:
    name = new_name()
    with connect(receiving, mortal, name) as receiver, connect(zeromq.JSON, mortal) as publisher:
        receiver.subscribe(topic)
        for number in range(10):
            publisher.publish(topic, f"{number}")
        assert receiver.texts(10) == [f"{number}" for number in range(10)]
        receiver.close()
        publisher.publish(topic, "missed")  # what happened before is on disk once this is
    mortal.restart()
    with connect(receiving, mortal, name) as receiver, connect(zeromq.JSON, mortal) as publisher:
        receiver.resume(topic)
        publisher.publish(topic, "newer")
        assert receiver.texts(2) == ["missed", "newer"]


@each("receiving", lambda dialect: dialect.keeps_last)
def test_the_last_value_stays(
    mortal: BrokerProcess, connect: Connect, topic: str, receiving: Dialect
) -> None:
    with connect(receiving, mortal) as publisher:
        publisher.publish(topic, "first")
        publisher.publish(topic, "last")
    mortal.restart()
    with connect(receiving, mortal) as receiver, connect(receiving, mortal) as publisher:
        receiver.subscribe(topic)
        publisher.publish(topic, "new")
        assert receiver.texts(2) == ["last", "new"]


@each("subscribing")
def test_who_has_unsubscribed_stays_so(
    mortal: BrokerProcess, connect: Connect, topic: str, subscribing: Dialect
) -> None:
    name = new_name()
    with connect(subscribing, mortal, name) as receiver:
        for one in (topic, f"{topic}-other"):
            receiver.subscribe(one)
        receiver.unsubscribe(topic)
    mortal.restart()
    with connect(subscribing, mortal, name) as receiver, connect(zeromq.TEXT, mortal) as publisher:
        publisher.subscribe(topic)
        publisher.publish(topic, "unseen")
        if subscribing.durable:
            receiver.resume(f"{topic}-other")
        else:
            receiver.subscribe(f"{topic}-other")
        publisher.publish(f"{topic}-other", "seen")
        assert receiver.texts(1) == ["seen"]
