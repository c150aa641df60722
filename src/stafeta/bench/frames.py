"""The frames door: `stafeta.frames.JSONQueue`.

The protocol has no receipt. Where messages go as fast as possible, the publisher asks for the broker's topics after
each batch of them: the answer comes once all before it is on disk, so that the publisher is never far ahead.
"""

import time

from stafeta.bench import clients, message_header
from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.plan import Plan
from stafeta.bench.schedule import Burst
from stafeta.errors import Cancelled
from stafeta.frames import JSONQueue, Role


class Publisher(clients.Publisher):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan, number)
        self._queue = JSONQueue(plan.topic, Role.PRODUCER, *plan.place, tls=plan.certificates())

    def publish(self, burst: Burst) -> None:
        push = self._queue.push
        for text in message_header.texts(burst, self.number, self.plan.size):
            push(text)
        if self.plan.rate is None and (burst.first + burst.total) % self.plan.batch == 0:
            self.finish()

    def finish(self) -> None:
        self._queue.list_topics(_ignore)


class Subscriber(clients.Subscriber):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._queue = JSONQueue(plan.topic, Role.CONSUMER, *plan.place, tls=plan.certificates())
        with JSONQueue(plan.topic, Role.PRODUCER, *plan.place, tls=plan.certificates()) as prober:
            prober.push(message_header.probe(plan.size))
            self._queue.pull()  # comes even if the probe was quicker than the subscription: as the last value

    def receive(self, stats: DeliveryStats) -> None:
        size = self.plan.size
        try:
            while True:
                _, value = self._queue.pull()
                now = time.monotonic_ns()
                if not isinstance(value, str):
                    raise message_header.stranger()
                stats.take([message_header.read(value, size)], now)
        except Cancelled:
            return

    def leave(self) -> None:
        self._queue.cancel()


def _ignore(topics: list[str]) -> None:
    pass
