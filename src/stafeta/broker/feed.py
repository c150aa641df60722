"""What a connection that is pushed its messages reads from.

1. A feed joins any number of one client's subscriptions. A message that several of them match is handed out once, and
   messages of different topics come in the order in which they were published.
2. It reads from the log, at the connection's own pace, so a slow connection costs no memory. A live subscription that
   falls too far behind ends the feed with `Lagging`.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stafeta.broker.log import in_order
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import Lagging
from stafeta.message import Batch

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker


class Feed:
    def __init__(self, broker: "Broker", client: str) -> None:
        self._broker = broker
        self.client = client
        self._subscriptions: dict[str, Subscription] = {}
        self._sent: dict[Topic, int] = {}  # the next offset to hand out
        self._ready: dict[Topic, None] = {}  # topics that may have something to hand out
        self._news = asyncio.Event()

    def subscribe(self, filter_: str, *, durable: bool) -> Subscription:
        """Make or resume the subscription and hand out what it has not acknowledged."""
        subscription = self._broker.subscribe(self.client, filter_, durable=durable)
        if filter_ not in self._subscriptions:
            self._subscriptions[filter_] = subscription
            self._broker.watch(subscription, self._wake)
            for topic in subscription.topics:
                floor = topic.cursors[subscription].floor
                self._sent[topic] = min(self._sent.get(topic, floor), floor)
                self._wake(topic)
        return subscription

    def unsubscribe(self, filter_: str) -> None:
        self._subscriptions.pop(filter_, None)
        self._broker.unsubscribe(self.client, filter_)

    def _wake(self, topic: Topic) -> None:
        self._ready[topic] = None
        self._news.set()

    async def next(self, size: int) -> list[Batch]:
        """Wait for messages; returns up to about `size` bytes of them, in order."""
        while True:
            await self._news.wait()
            found: list[tuple[list[Batch], bool]] = []
            # As of one instant: else what is committed while one topic is read would come before what it came after.
            ends = [(topic, topic.visible) for topic in self._ready]
            for topic, end in ends:
                batches, more = await self._read(topic, end, size)
                found.append((batches, more))
            ordered = in_order(found)
            for batch in ordered:
                self._sent[self._broker.topics[batch.topic]] = batch.end
            for topic in list(self._ready):
                if self._sent.get(topic, 0) >= topic.visible or not self._covering(topic):
                    del self._ready[topic]
            if not self._ready:
                self._news.clear()
            if ordered:
                return ordered

    async def _read(self, topic: Topic, end: int, size: int) -> tuple[list[Batch], bool]:
        subscriptions = self._covering(topic)
        if not subscriptions:
            return [], False
        cursors = [topic.cursors[subscription] for subscription in subscriptions]
        start = max(self._sent.setdefault(topic, min(cursor.floor for cursor in cursors)), topic.first)
        if not any(subscription.durable for subscription in subscriptions):
            self._check_lag(topic, min(cursor.floor for cursor in cursors))
        batches: list[Batch] = []
        for a, b in cursors[0].pending(end) if len(cursors) == 1 else iter([(start, end)]):
            if b > start and size > 0:
                read = await self._broker.log.read(topic, max(a, start), b, size)
                batches += read
                size -= sum(batch.size for batch in read)
        if not batches:
            self._sent[topic] = end  # all of it was acknowledged elsewhere, or collected
        return batches, bool(batches) and batches[-1].end < end

    def _check_lag(self, topic: Topic, floor: int) -> None:
        lag = topic.visible - floor
        if lag > self._broker.limits.lag:
            raise Lagging(
                f"Client {self.client!r} is {lag} messages behind on {topic.name!r}; a live subscription may be "
                f"{self._broker.limits.lag} behind (limits.max_lag)."
            )

    def _covering(self, topic: Topic) -> list[Subscription]:
        return [
            subscription for subscription in self._subscriptions.values() if subscription in topic.cursors
        ]

    def done(self, batches: Iterable[Batch]) -> None:
        """The connection has these; acknowledge them."""
        for batch in batches:
            topic = self._broker.topics[batch.topic]
            for subscription in self._covering(topic):
                self._broker.ack(subscription, topic, batch.base, batch.end)

    def close(self) -> None:
        """End the live subscriptions; the durable ones go on holding what comes."""
        for subscription in self._subscriptions.values():
            self._broker.unwatch(subscription, self._wake)
            if not subscription.durable:
                self._broker.unsubscribe(self.client, subscription.filter)
        self._subscriptions.clear()
