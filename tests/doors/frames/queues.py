"""Queues that are ready."""

from collections.abc import Callable

from stafeta.frames import JSONQueue, Queue, Role
from tests.doors.frames.peers import Place

Connect = Callable[..., Queue]


def subscribed(consumer: Queue, place: Place) -> None:
    """Returns when the consumer's subscription is in effect."""
    marker = f"{consumer.topic}/ready"
    with JSONQueue(marker, Role.PRODUCER, *place) as producer:
        producer.push("now")
    assert consumer.pull()[0] == marker
