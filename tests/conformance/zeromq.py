"""Strangers at the ZeroMQ door: both dialects over plain pyzmq, and the project's own client as a third."""

import json
from abc import abstractmethod
from itertools import count
from typing import Any

from stafeta import Client
from tests.brokers import Doors
from tests.conformance.dialects import Dialect, Received, Stranger
from tests.conformance.encrypted import curve_of
from tests.doors.zeromq.peers import Peer, request
from tests.waiting import wait_until

_counters = count(1)


class Fetching(Stranger):
    """One that has to ask for its messages."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, None] = {}

    def resume(self, topic: str) -> None:
        self.subscriptions[topic] = None

    @abstractmethod
    def fetch(self, subscription: str) -> list[Received]:
        """What there is now of one subscription, acknowledged."""

    def receive(self, count: int) -> list[Received]:
        found: list[Received] = []

        def enough() -> bool:
            for subscription in self.subscriptions:
                found.extend(self.fetch(subscription))
            return len(found) >= count

        wait_until(enough)
        for subscription in self.subscriptions:  # what should not be there is not left behind
            found.extend(self.fetch(subscription))
        return found


class Text(Fetching):
    def __init__(self, broker: Doors, name: str) -> None:
        super().__init__()
        self._name = name
        self._peer = Peer(broker.address, curve=curve_of(broker))

    def subscribe(self, topic: str) -> None:
        assert self._peer.ask(f"SUB {self._name} {topic}") == "ACK"
        self.subscriptions[topic] = None

    def unsubscribe(self, topic: str) -> None:
        del self.subscriptions[topic]
        assert self._peer.ask(f"UNSUB {self._name} {topic}") == "ACK"

    def publish(self, topic: str, text: str) -> None:
        assert self._peer.ask(f"PUT {topic} {text}") == "ACK"

    def fetch(self, subscription: str) -> list[Received]:
        found = self._peer.got(self._name, subscription)
        if found:
            ids = ",".join(str(id_) for id_, _ in found)
            assert self._peer.ask(f"ACK {self._name} {subscription} {ids}") == "ACK"
        wide = any(sign in subscription for sign in "+#*")
        return [Received(None if wide else subscription, text, text) for _, text in found]

    def close(self) -> None:
        self._peer.close()


class Json(Fetching):
    def __init__(self, broker: Doors, name: str) -> None:
        super().__init__()
        self._name = name
        self._peer = Peer(broker.address, curve=curve_of(broker))
        self._read: dict[str, int] = {}

    def subscribe(self, topic: str) -> None:
        self._read[topic] = self._peer.acked("SUB", topic, self._name)["last_publication_id"]
        self.subscriptions[topic] = None

    def resume(self, topic: str) -> None:
        self.subscribe(topic)  # is told again how far it was

    def unsubscribe(self, topic: str) -> None:
        del self.subscriptions[topic]
        assert self._peer.acked("UNSUB", topic, self._name) == {}

    def publish(self, topic: str, text: str) -> None:
        self.put(topic, publication=text)

    def put(self, topic: str, **body: object) -> None:
        """Publishes with what the dialect has beyond text."""
        assert self._peer.acked("PUT", topic, self._name, counter=next(_counters), **body)

    def fetch(self, subscription: str) -> list[Received]:
        found: list[Received] = []
        while (one := self._next(subscription))["publication_id"] != -1:
            self._read[subscription] = one["publication_id"]
            found.append(Received(one.get("topic", subscription), one["publication"], one))
        return found

    def _next(self, subscription: str) -> dict[str, Any]:
        return self._peer.acked("GET", subscription, self._name, last_publication_id=self._read[subscription])

    def close(self) -> None:
        self._peer.close()


class Own(Fetching):
    """`stafeta.Client`, with a folder of its own."""

    def __init__(self, broker: Doors, name: str) -> None:
        super().__init__()
        self.client = Client(broker.address, broker.data.with_name(f"client-{name}"), curve=curve_of(broker))

    def subscribe(self, topic: str) -> None:
        self.client.subscribe(topic)
        self.subscriptions[topic] = None

    def unsubscribe(self, topic: str) -> None:
        del self.subscriptions[topic]
        self.client.unsubscribe(topic)

    def publish(self, topic: str, text: str) -> None:
        self.client.put(topic, text)

    def fetch(self, subscription: str) -> list[Received]:
        found = self.client.get_many(subscription)
        self.client.ack(found)
        return [Received(message.topic, message.text, message) for message in found]

    def close(self) -> None:
        self.client.close()


def deaf(broker: Doors, topic: str, name: str) -> Peer:
    """Asks for a topic's messages over and over, and reads no reply."""
    peer = Peer(broker.address, deaf=True, curve=curve_of(broker))
    assert json.loads(peer.ask(request("SUB", topic, name)))["type"] == "ACK"
    for _ in range(2000):
        peer.send(f"GET {name} {topic}")
    return peer


TEXT = Dialect("zeromq-text", "zeromq", Text, durable=True, names_topics=False)
JSON = Dialect("zeromq-json", "zeromq", Json, durable=True)
CLIENT = Dialect("client", "zeromq", Own, durable=True)
