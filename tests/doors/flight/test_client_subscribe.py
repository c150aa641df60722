"""The native client's subscriptions."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import stafeta
from stafeta.clients.flight.connection import Connection
from stafeta.clients.flight.subscription import Subscription
from stafeta.errors import ConfigError, InvalidMessage, InvalidName, NotSubscribed, TakenOver
from tests.doors.flight.peers import Place
from tests.waiting import PATIENCE


@pytest.fixture
def broker(place: Place) -> Iterator[Connection]:
    host, port = place
    with stafeta.connect(f"grpc://{host}:{port}", timeout=PATIENCE) as connection:
        yield connection


def take(subscription: Subscription, count: int, *, ack: bool = True) -> list[str]:
    """Payloads until there are so many."""
    found: list[str] = []
    while len(found) < count:
        batch = next(subscription)
        found += [payload.decode() for payload in batch.payloads()]
        if ack:
            batch.ack()
    return found


# --- refused


def test_what_cannot_be_subscribed_to(broker: Connection, topic: str, name: str) -> None:
    with pytest.raises(InvalidName):
        broker.subscribe("a/b+", name=name)
    with pytest.raises(InvalidName):
        broker.subscribe("a/b+")
    with pytest.raises(InvalidName):
        broker.subscribe("a", name="white space")
    with pytest.raises(ConfigError, match="starts at 'latest' or 'earliest', not 'soon'"):
        broker.subscribe("a", start="soon")
    broker.publish(topic, ["x"])
    with pytest.raises(NotSubscribed):
        broker.unsubscribe(topic, name=name)


def test_a_subscription_that_is_taken_over_says_so(broker: Connection, topic: str, name: str) -> None:
    with broker.subscribe(topic, name=name) as first, broker.subscribe(topic, name=name) as second:
        with pytest.raises(TakenOver, match="taken over"):
            next(first)
        broker.publish(topic, ["x"])
        assert take(second, 1) == ["x"]


def test_acknowledging_what_is_not_subscribed_to_any_more(broker: Connection, topic: str, name: str) -> None:
    subscription = broker.subscribe(topic, name=name)
    broker.publish(topic, ["x"])
    batch = next(subscription)
    broker.unsubscribe(topic, name=name)
    batch.ack()
    for use in (subscription.flush, lambda: next(subscription), batch.ack, subscription.close):
        with pytest.raises(NotSubscribed):
            use()


# --- durable


def test_what_was_not_acknowledged_comes_again(broker: Connection, topic: str, name: str) -> None:
    with broker.subscribe(topic, name=name) as subscription:
        broker.publish(topic, list(map(str, range(10))))
        batch = next(subscription)
        assert len(batch) == 10
        batch.ack(4)
    for _ in range(2):
        with broker.subscribe(topic, name=name) as subscription:
            assert take(subscription, 6, ack=False) == list(map(str, range(4, 10)))
    with broker.subscribe(topic, name=name) as subscription:
        take(subscription, 6)
        subscription.flush()
    with broker.subscribe(topic, name=name, follow=False) as subscription:
        assert list(subscription) == []


def test_acknowledging_out_of_order(broker: Connection, topic: str, name: str) -> None:
    with broker.subscribe(topic, name=name) as subscription:
        batches = []
        for number in range(3):
            broker.publish(topic, [str(number)])
            batches.append(next(subscription))
        batches[2].ack()
        batches[0].ack()
    with broker.subscribe(topic, name=name, follow=False) as subscription:
        assert [batch.payloads() for batch in subscription] == [[b"1"]]


def test_a_filter_gets_all_topics_in_order_and_acknowledges_each(
    broker: Connection, topic: str, name: str
) -> None:
    total = 300
    with broker.subscribe(f"{topic}/#", name=name, columns=["payload"]) as subscription:
        for number in range(total):
            broker.publish(f"{topic}/{number % 7}", [str(number)])
        batch = next(subscription)
        assert batch.data.schema.names == ["payload"]
        found = [payload.decode() for payload in batch.payloads()]
        batch.ack()
        found += take(subscription, total - len(found))
    assert found == list(map(str, range(total)))
    with broker.subscribe(f"{topic}/#", name=name, follow=False) as subscription:
        assert list(subscription) == []


def test_beginning_with_what_is_there(broker: Connection, topic: str, name: str) -> None:
    broker.publish(topic, ["old"])
    with broker.subscribe(topic, name=name, start="earliest") as subscription:
        broker.publish(topic, ["new"])
        assert take(subscription, 2) == ["old", "new"]
    with broker.subscribe(topic, name=name, start="earliest", follow=False) as subscription:
        assert list(subscription) == []


def test_a_subscription_that_was_ended_begins_anew(broker: Connection, topic: str, name: str) -> None:
    with broker.subscribe(topic, name=name):
        broker.publish(topic, ["x"])
    broker.unsubscribe(topic, name=name)
    with broker.subscribe(topic, name=name) as subscription:
        broker.publish(topic, ["y"])
        assert take(subscription, 1) == ["y"]


# --- without a name


@pytest.mark.parametrize("filter", ["{}", "{}/#"])
def test_a_subscription_without_a_name_begins_now(broker: Connection, topic: str, filter: str) -> None:
    broker.publish(topic, ["old"])
    with broker.subscribe(filter.format(topic)) as subscription:
        broker.publish(topic, ["new"])
        batch = next(subscription)
        assert batch.payloads() == [b"new"]
        batch.ack()
        subscription.flush()
    with broker.subscribe(filter.format(topic), start="earliest") as subscription:
        assert take(subscription, 2) == ["old", "new"]


def test_a_topic_that_comes_later(broker: Connection, topic: str) -> None:
    with broker.subscribe(topic) as subscription:
        broker.publish(topic, ["first"])
        assert take(subscription, 1) == ["first"]


# --- what is received


def test_messages_one_by_one(broker: Connection, topic: str) -> None:
    with broker.subscribe(topic) as subscription:
        broker.publish(topic, [21.5, "warm"])
        number, text = next(subscription).rows()
    assert (number.topic, number.offset, number.kind, number.payload) == (topic, 1, "float", b"21.5")
    assert (text.offset, text.kind, text.payload) == (2, "string", b"warm")
    assert text.timestamp is not None
    assert text.timestamp.tzinfo is not None
    assert text.source is not None
    assert text.source.startswith("127.0.0.1:")
    with broker.subscribe(topic, start="earliest", columns=["payload"]) as subscription:
        assert next(subscription).rows()[0] == (None, None, None, None, None, None, b"21.5")


def test_many_threads_share_a_connection(broker: Connection, topic: str) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            if turn % 5 == 4:
                with pytest.raises(InvalidMessage):
                    broker.publish(topic, ["no number"] * 10, kind="int")
            broker.publish(topic, [str(number * 100 + turn)], kind="int")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
    payloads: list[Any] = broker.read(topic).column("payload").to_pylist()
    found = list(map(int, payloads))
    assert sorted(found) == sorted(number * 100 + turn for number in range(8) for turn in range(20))
    for number in range(8):
        mine = [one for one in found if one // 100 == number]
        assert mine == sorted(mine)
