"""A consumer: what a connection that is pushed its messages reads from.

1. A consumer joins any number of one client's subscriptions. A message that several of them match is handed out once,
   and messages of different topics come in the order in which they were published.
2. It reads from the log, at the connection's own pace, so a slow connection costs no memory. A live subscription that
   falls too far behind ends the consumer with `Lagging`.
3. What it hands out is a list of batches. Where they are of several topics their messages interleave: their order is
   that of their positions. Consumers that are equally far share the batches, so a door can share what it makes of them.
4. A topic that is damaged where it is read next is set aside, so that the others come. When there is nothing else to
   hand out, `read` raises StoreDamaged for it, once; it goes on when the damage is skipped or acknowledged.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stafeta.broker import portions
from stafeta.broker.portions import in_portions
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import Lagging, StoreDamaged
from stafeta.message import Batch

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker


FEW = 32  # messages read at least of each of several topics


class Span(NamedTuple):
    """Messages that were handed out: offsets from `start` up to, not including, `stop`."""

    topic: Topic
    start: int
    stop: int


def _nobody() -> None:
    """In place of `on_ready` once a consumer is closed."""


class Consumer:
    """`on_ready` is called when there is something to take where there was nothing, or the consumer is too far behind.

    With `unbounded_lag` it may be as far behind as it likes; only a message that goes before it was handed out ends
    it."""

    __slots__ = (
        "_ahead",
        "_asked",
        "_broker",
        "_damaged",
        "_joining",
        "_ready",
        "_sent",
        "_subscriptions",
        "_unreported",
        "client",
        "lagging",
        "on_ready",
        "unbounded_lag",
    )

    def __init__(
        self, broker: "Broker", client: str, on_ready: Callable[[], None], *, unbounded_lag: bool
    ) -> None:
        self._broker = broker
        self.client = client
        self.on_ready = on_ready
        self.unbounded_lag = unbounded_lag
        self.lagging: Lagging | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._sent: dict[Topic, int] = {}  # the next offset to hand out
        self._ready: dict[Topic, None] = {}  # topics that may have something to hand out
        self._ahead: dict[
            Topic, list[Batch]
        ] = {}  # what was read, and comes after something still to be read
        # Topics that are damaged: where, and what was skipped of them then.
        self._damaged: dict[Topic, tuple[int, tuple[tuple[int, int], ...]]] | None = None
        self._unreported: list[StoreDamaged] | None = None
        self._joining = 0  # subscriptions of which not all topics are looked at yet
        self._asked = False  # meanwhile, for what there is to take

    # --- subscriptions

    def resume(self) -> None:
        """Go on with the subscriptions that the client has."""
        for filter_, subscription in list(self._broker.clients.get(self.client, {}).items()):
            if filter_ not in self._subscriptions:
                self._join(subscription)

    def subscribe(
        self, filter_: str, *, durable: bool, persistent: bool = False, last_of: str | None = None
    ) -> Subscription:
        """Make or change the subscription, and hand out what it has not acknowledged. `last_of` is a topic whose last
        message, if it holds one, is handed out again."""
        subscription = self._broker.subscribe(self.client, filter_, durable=durable, persistent=persistent)
        if self._subscriptions.get(filter_) is not subscription:
            self._join(subscription)
        topic = self._broker.topics.get(last_of) if last_of is not None else None
        if topic is not None and topic.exists and subscription.covers(topic.name):
            self._go_back(subscription, topic)
        return subscription

    def _join(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.filter] = subscription
        self._broker.registry.reattach(subscription)
        self._broker.watch(subscription, self._wake)
        subscription.on_move += (self._moved,)
        self._joining += 1
        self._broker.registry.portions.do(self._look_at(subscription, list(subscription.cursors)))

    def _look_at(self, subscription: Subscription, topics: Iterable[Topic]) -> Iterator[None]:
        """Nothing is handed out until all of them are looked at: what comes first may be in the last."""
        for topic in topics:
            if self._subscriptions.get(subscription.filter) is not subscription:
                break
            floor = subscription.floor(topic)
            if topic in self._sent:
                self._restart(topic, min(self._sent[topic], floor))
            if floor < topic.visible:
                self._wake(topic)
            yield
        self._joining -= 1
        if not self._joining and (self._ready or self._asked):
            self._asked = False
            self.on_ready()

    @property
    def joining(self) -> bool:
        """True until it is known what there is to take."""
        return self._joining > 0

    def _go_back(self, subscription: Subscription, topic: Topic) -> None:
        last = topic.back(topic.next, 1)
        if last < topic.first:
            return
        self._broker.rewind(subscription, topic, min(subscription.floor(topic), last))
        self._restart(topic, min(self._sent.get(topic, self._floor(topic)), last))
        if last < topic.visible:
            self._wake(topic)

    def _restart(self, topic: Topic, offset: int) -> None:
        if self._sent.get(topic) != offset:
            self._sent[topic] = offset
            self._ahead.pop(topic, None)

    def unsubscribe(self, filter_: str) -> None:
        subscription = self._subscriptions.get(filter_)
        topics = list(subscription.cursors) if subscription is not None else []
        self._broker.unsubscribe(self.client, filter_)
        if subscription is not None:
            del self._subscriptions[filter_]
            self._unwatch(subscription)
        self._broker.registry.portions.do(self._forget(topics))

    def _unwatch(self, subscription: Subscription) -> None:
        self._broker.unwatch(subscription, self._wake)
        subscription.on_move = tuple(one for one in subscription.on_move if one != self._moved)

    def _moved(self, topic: Topic, offset: int) -> None:
        """A subscription goes on at another offset of a topic."""
        if topic in self._sent:
            self._restart(topic, min(self._sent[topic], offset))
        if self._damaged is not None:
            self._damaged.pop(topic, None)
        if offset < topic.visible:
            self._wake(topic)

    def _forget(self, topics: Iterable[Topic]) -> Iterator[None]:
        for topic in topics:
            if not self._covering(topic):
                for known in (self._sent, self._ready, self._ahead, self._damaged or {}):
                    known.pop(topic, None)
            yield

    @property
    def filters(self) -> list[str]:
        """What it has subscribed to."""
        return list(self._subscriptions)

    @property
    def durable(self) -> bool:
        """True if what is handed out has to be acknowledged for good."""
        for subscription in self._subscriptions.values():  # noqa: SIM110 - asked for each portion: any() takes thrice
            if subscription.durable:
                return True
        return False

    def close(self) -> None:
        """End the live subscriptions; the durable ones go on holding what comes."""
        for subscription in self._subscriptions.values():
            self._unwatch(subscription)
            self._broker.leave(subscription)
        self._subscriptions.clear()
        self._ready.clear()
        self._ahead.clear()
        # Both know the consumer: they would keep each other until cycles are looked for.
        self.on_ready = _nobody
        self.lagging = None

    # --- handing out

    def _wake(self, topic: Topic) -> None:
        sent = self._sent.get(topic)
        if sent is None:
            sent = self._sent[topic] = self._floor(topic)
        if self._damaged and topic in self._damaged:
            if self._damaged[topic] == (self._wanted(topic)[0], topic.skipped):
                return  # it is damaged there still
            del self._damaged[topic]
        if not self._ready and not self._joining:
            self._ready[topic] = None
            self.on_ready()
        else:
            self._ready[topic] = None
        if topic.visible - sent > self._broker.registry.limits.max_lag and self.lagging is None:
            # What was handed out for a subscription that has ended says nothing of one that came after it.
            sent = self._sent[topic] = max(sent, self._floor(topic))
            if self.unbounded_lag:
                self._broker.collector.dirty.add(topic)  # no more than that is held for it
            elif (lag := topic.messages(sent, topic.visible)) > self._broker.registry.limits.max_lag:
                self._check_lag(topic, lag)

    def _floor(self, topic: Topic) -> int:
        """All below is done."""
        floors = [subscription.cursors[topic].floor for subscription in self._covering(topic)]
        return min(floors, default=topic.visible)

    def _check_lag(self, topic: Topic, lag: int) -> None:
        if any(subscription.durable for subscription in self._covering(topic)):
            return
        self.lagging = Lagging(
            f"Client {self.client!r} is {lag} messages behind on {topic.name!r}; a live subscription may be "
            f"{self._broker.registry.limits.max_lag} behind (limits.max_lag)."
        )
        self.on_ready()

    def _overtaken(self, topic: Topic, start: int) -> Lagging:
        self.lagging = Lagging(
            f"Messages {start} to {topic.first - 1} of {topic.name!r} went before they were read: nobody else waits "
            "for them, and the topic does not keep them. A named subscriber, or retention, would hold them."
        )
        return self.lagging

    def _covering(self, topic: Topic) -> list[Subscription]:
        mine, others = self._subscriptions, topic.subscribers
        if len(mine) == 1:
            (one,) = mine.values()
            return [one] if topic in one.cursors else []
        if len(others) < len(mine):
            return [one for one in others if mine.get(one.filter) is one and topic in one.cursors]
        return [one for one in mine.values() if topic in one.cursors]

    @property
    def sets_aside(self) -> bool:
        """True while a topic waits behind damage: what comes meanwhile may be of later positions."""
        return bool(self._damaged)

    @property
    def ready(self) -> bool:
        """True where there may be something to take."""
        return not self._joining and bool(self._ready or self._unreported)

    def take(self, size: int, overhead: int = 0) -> list[Batch] | None:
        """Messages of about `size` bytes, where each takes `overhead` bytes beside its payload. Nothing where there is
        none; None where they are not in memory and have to be read."""
        if self.lagging is not None:
            raise self.lagging
        if self._joining:
            self._asked = True
            return []
        if len(self._ready) > portions.PORTION:
            return None  # others get their turn meanwhile
        log = self._broker.log
        share = self._share(size, overhead)
        for topic in list(self._ready):
            if topic in self._ahead:
                continue
            start, stop = self._wanted(topic)
            batches = log.newest(topic, start, stop, share, overhead)
            if batches is None:
                return None
            if len(self._ready) == 1:
                return self._handed_out(topic, start, stop, batches)
            self._keep(topic, stop, batches)
        return None if self._unreported else self._in_turn(self._broker.log.visible_position)

    async def read(self, size: int, overhead: int = 0) -> list[Batch]:
        """The same, from the store where necessary."""
        if self.lagging is not None:
            raise self.lagging
        if self._joining:
            self._asked = True
            return []
        # What is committed while the topics are read one after the other comes after all that was there before.
        limit = self._broker.log.visible_position
        share = self._share(size, overhead)
        async for topic in in_portions(list(self._ready)):
            if topic not in self._ahead:
                sent = self._sent.get(topic)
                start, stop = self._wanted(topic)
                try:
                    batches = await self._broker.log.read(topic, start, stop, share, overhead)
                except StoreDamaged as error:
                    self._set_aside(topic, start, error)
                    continue
                if self._sent.get(topic) != sent:
                    return []  # a subscription came or went meanwhile: begin again
                gone = start < topic.first and (not batches or batches[0].base > start)
                if gone and self.unbounded_lag and not self.durable:
                    raise self._overtaken(topic, start)  # they were collected meanwhile
                self._keep(topic, stop, batches)
        found = await self._in_portions(limit)
        if not found and self._unreported:
            raise self._unreported.pop()
        return found

    def _set_aside(self, topic: Topic, start: int, error: StoreDamaged) -> None:
        self._ready.pop(topic, None)
        self._damaged = self._damaged or {}
        self._damaged[topic] = start, topic.skipped
        self._unreported = [*(self._unreported or ()), error]

    def _share(self, size: int, overhead: int) -> int:
        """How much to read of each topic. Not less than a few messages: each reading is an effort, and what is not
        handed out at once will be soon."""
        topics = len(self._ready)
        return size if topics <= 1 else max(size // topics, FEW * (overhead + FEW))

    def _wanted(self, topic: Topic) -> tuple[int, int]:
        """The offsets to read next."""
        cursors = [subscription.cursors[topic] for subscription in self._covering(topic)]
        stop = topic.visible
        if not cursors:
            return stop, stop
        # What was acknowledged through another door lies below the floor, or above it in ranges.
        floor = cursors[0].floor if len(cursors) == 1 else min([cursor.floor for cursor in cursors])
        start = max(self._sent.get(topic, 0), floor)
        if start < topic.first:
            if self.unbounded_lag and not self.durable:
                raise self._overtaken(topic, start)
            start = topic.first
        if len(cursors) == 1 and cursors[0].gaps:
            start, stop = cursors[0].next_pending(start, stop) or (stop, stop)
        return start, stop

    def _keep(self, topic: Topic, stop: int, batches: list[Batch]) -> None:
        if batches:
            self._ahead[topic] = batches
        else:
            self._handed_out(topic, stop, stop, [])

    def _handed_out(self, topic: Topic, start: int, stop: int, batches: list[Batch]) -> list[Batch]:
        # What was asked for and not found has been collected, and nobody waits for it.
        if batches:
            self._count(topic, batches)
        sent = self._sent[topic] = batches[-1].end if batches else max(start, stop)
        if sent >= topic.visible and topic not in self._ahead:
            self._ready.pop(topic, None)
        return batches

    def _count(self, topic: Topic, batches: list[Batch]) -> None:
        counts = self._broker.totals
        for batch in batches:
            counts.delivered += batch.count
        if self.durable:
            cursors = [one.cursors[topic] for one in self._covering(topic) if one.durable]
            again = [cursor.hand_out(batches[0].base, batches[-1].end) for cursor in cursors]
            counts.redelivered += max(again, default=0)

    def _in_turn(self, limit: int) -> list[Batch]:
        """Of what was read ahead all that comes before anything still to be read: positions below the limit."""
        for topic, batches in self._ahead.items():
            limit = _limit(topic, batches, limit)
        return [batch for topic in list(self._ahead) for batch in self._due(topic, limit)]

    async def _in_portions(self, limit: int) -> list[Batch]:
        """The same, a portion of the topics in each turn of the loop."""
        async for topic, batches in in_portions(list(self._ahead.items())):
            limit = _limit(topic, batches, limit)
        return [batch async for topic in in_portions(list(self._ahead)) for batch in self._due(topic, limit)]

    def _due(self, topic: Topic, limit: int) -> list[Batch]:
        batches = self._ahead.get(topic, [])
        whole = 0
        while whole < len(batches) and batches[whole].last_position < limit:
            whole += 1
        due, left = batches[:whole], batches[whole:]
        if left:
            batch = left[0]
            middle = batch.base + bisect_right(batch.positions, limit - 1)
            if middle > batch.base:
                due.append(batch.cut(batch.base, middle))
                left[0] = batch.cut(middle, batch.end)
            self._ahead[topic] = left
        else:
            self._ahead.pop(topic, None)
        return self._handed_out(topic, due[0].base, due[-1].end, due) if due and self._covering(topic) else []

    def done(self, spans: Iterable[Span]) -> None:
        """The connection has these; acknowledge them."""
        for topic, start, stop in spans:
            for subscription in self._covering(topic):
                self._broker.ack_surely(subscription, topic, start, stop)

    def spans(self, batches: Sequence[Batch]) -> list[Span]:
        """What to give to `done` for these batches, of which there is at least one."""
        topics = self._broker.topics
        spans: list[Span] = []
        name, start, stop = "", 0, 0
        for batch in batches:
            if batch.base == stop and batch.topic == name:
                stop += batch.count
                continue
            if stop:
                spans.append(Span(topics[name], start, stop))
            name, start, stop = batch.topic, batch.base, batch.end
        spans.append(Span(topics[name], start, stop))
        return spans


def _limit(topic: Topic, batches: list[Batch], limit: int) -> int:
    """Nothing from this position on is handed out, where these were read of the topic."""
    return min(limit, batches[-1].last_position + 1) if batches[-1].end < topic.visible else limit
