"""The ZeroMQ door: `stafeta.Client`, which remembers nothing on disk."""

import time
from contextlib import suppress
from typing import Final

import stafeta
from stafeta.bench import clients, message_header
from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.plan import Plan
from stafeta.bench.schedule import Burst
from stafeta.errors import NoReply

_LIMIT: Final = 10_000  # messages that are asked for at a time; a reply has room for fewer
_WAIT: Final = 0.2  # seconds to wait for some


class Publisher(clients.Publisher):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan, number)
        self._client = stafeta.Client(f"tcp://{plan.address}")
        self._client.put(plan.topic, message_header.probe(plan.size))  # connected, and known to the broker

    def publish(self, burst: Burst) -> None:
        self._client.put_many(self.plan.topic, message_header.texts(burst, self.number, self.plan.size))
        self.note(burst, time.monotonic_ns())


class Subscriber(clients.Subscriber):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._client = stafeta.Client(f"tcp://{plan.address}")
        self._client.subscribe(plan.topic)

    def receive(self, stats: DeliveryStats) -> None:
        topic, size = self.plan.topic, self.plan.size
        while not self.leaving.is_set():
            messages = self._client.get_many(topic, _LIMIT, _WAIT)
            if messages:
                now = time.monotonic_ns()
                stats.take([message_header.read(message.data, size) for message in messages], now)
                self._client.ack(messages)

    def close(self) -> None:
        with suppress(NoReply):  # then the broker is gone, and it may be why this ends
            self._client.unsubscribe(self.plan.topic)
        self._client.close()
