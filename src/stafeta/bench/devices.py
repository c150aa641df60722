"""The devices door: readings of the kind string by UDP, a subscriber with SF 1 by TCP.

Nothing says that a subscription is there: the subscriber publishes probes until one of them comes.
"""

import secrets
import time
from contextlib import suppress
from typing import Final

from stafeta.bench import clients, message_header
from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.plan import Plan
from stafeta.bench.schedule import Burst
from stafeta.clients import devices as client
from stafeta.doors.devices.codec import ReceivedMessage
from stafeta.doors.devices.readings import write
from stafeta.errors import Disconnected, NoReply
from stafeta.message import Kind

_PROBES: Final = 200
_INTERVAL: Final = 0.05  # seconds between two of them
_WAIT: Final = 0.2  # seconds to wait for messages


class Publisher(clients.Publisher):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan, number)
        self._publisher = client.Publisher(*plan.place)
        self._begin = write(plan.topic, Kind.STRING, b"")

    def publish(self, burst: Burst) -> None:
        for text in message_header.texts(burst, self.number, self.plan.size):
            self._publisher.send(self._begin + text.encode())


class Subscriber(clients.Subscriber):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._subscriber = client.Subscriber(f"b{secrets.token_hex(4)}", *plan.place, tls=plan.certificates())
        self._subscriber.subscribe(plan.topic, sf=True)
        with client.Publisher(*plan.place) as prober:
            for _ in range(_PROBES):
                prober.publish(plan.topic, Kind.STRING, message_header.probe(plan.size).encode())
                if self._deliveries(_INTERVAL):
                    return
        raise NoReply(f"No reading sent to {plan.address} by UDP comes out again. Is that the devices door?")

    def receive(self, stats: DeliveryStats) -> None:
        size = self.plan.size
        while not self.leaving.is_set():
            deliveries = self._deliveries(_WAIT)
            now = time.monotonic_ns()
            stats.take([message_header.read(delivery.value, size) for delivery in deliveries], now)

    def close(self) -> None:
        with suppress(NoReply):
            self._subscriber.unsubscribe(self.plan.topic)
            self._subscriber.finish()
            while self._subscriber.receive(_WAIT):
                pass
        self._subscriber.close()

    def _deliveries(self, timeout: float) -> list[ReceivedMessage]:
        deliveries = self._subscriber.receive(timeout)
        if deliveries is None:
            raise Disconnected(f"The broker at {self.plan.address} has closed the connection.")
        return deliveries
