"""Waiting until the broker knows that a subscriber has come, or has gone."""

from tests.brokers import BrokerProcess
from tests.doors.devices.subscribers import Publisher, Subscriber
from tests.waiting import wait_until


def subscribed(subscriber: Subscriber, publisher: Publisher, *topics: str, sf: int = 0) -> None:
    """Subscribes, and waits until the broker knows."""
    subscriber.say(*(subscriber.subscription(topic, sf) for topic in topics))
    assert not subscriber.settled(publisher)


def gone(broker: BrokerProcess, client: str) -> None:
    """Waits until the broker knows that a client has left."""
    came, left = f"New client {client} connected", f"Client {client} disconnected."
    wait_until(lambda: broker.stderr.count(came) == broker.stderr.count(left))
