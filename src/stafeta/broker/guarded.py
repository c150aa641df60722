"""The verbs of the broker for one user: each is checked here, and the broker's parts do the work.

1. Names of clients, producers and sessions are the user's own: the broker keeps them with `users/<user>/` before them.
   So nobody can say another's, and whose one is outlives a restart.
2. A topic is checked whenever it is published to, subscribed to, read, listed, counted, acknowledged or administered. A
   subscription's filter is cut down where its cursors are made (`Subscription.permits`); of what a consumer hands out
   each batch is looked at again, and no message.
3. Whether a topic exists is said only to those who may do something with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from stafeta.broker.commits import Pending
from stafeta.broker.consumer import Consumer
from stafeta.broker.cursor import Span
from stafeta.broker.guarded_overviews import Overviews
from stafeta.broker.portions import in_portions
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.errors import LimitReached, StafetaError, StoreDamaged
from stafeta.message import Batch, Kind, RowBatch
from stafeta.names import client_of, is_filter
from stafeta.security.rules import ACKNOWLEDGE, ADMINISTER, LIST, PUBLISH, READ, SUBSCRIBE
from stafeta.store.port import ReadNext

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker
    from stafeta.columns import ColumnBatch

_SEEN = LIST | READ | ACKNOWLEDGE  # one of them, to be told how far a topic has come


class GuardedBroker(Overviews):
    """Made by `Broker.for_principal`."""

    __slots__ = ()

    # --- publishing

    def publish(
        self,
        name: str,
        payload: bytes,
        kind: int = Kind.STRING,
        source: str = "",
        producer: str = "",
        counter: int | None = None,
        *,
        create: bool = False,
        keep_last: bool = False,
    ) -> int:
        topic = self._publishable.get(name)  # which is empty once users have changed
        if topic is None or not topic.exists:
            self._check_publish(name, producer)
        if producer:
            producer = self._name(producer)
        return self._publish(
            name, payload, kind, source, producer, counter, create=create, keep_last=keep_last
        )

    def publish_all(self, messages: Sequence[tuple[str, int, bytes, str]]) -> int:
        """What may not be published is left out, as what has no topic is."""
        on, client = self._may().on, self.principal.client
        allowed = [message for message in messages if on(message[0], client) & PUBLISH]
        refused = len(messages) - len(allowed)
        if refused:
            name = next(message[0] for message in messages if not on(message[0], client) & PUBLISH)
            self._broker.security.observe_refusal(self.principal, PUBLISH, name, refused)
        return refused + self._broker.publish_all(allowed)

    def publish_once(
        self,
        name: str,
        payload: bytes,
        producer: str,
        counter: int,
        kind: int = Kind.STRING,
        source: str = "",
    ) -> int:
        self._check_publish(name, producer)
        return self._broker.publish_once(name, payload, self._name(producer), counter, kind, source)

    def publish_sequence(
        self,
        name: str,
        payloads: Sequence[bytes],
        producer: str,
        sequence: int,
        kind: int = Kind.STRING,
        source: str = "",
        *,
        create: bool = False,
    ) -> tuple[int, int]:
        self._check_publish(name, producer)
        return self._broker.publish_sequence(
            name, payloads, self._name(producer), sequence, kind, source, create=create
        )

    def append(
        self,
        name: str,
        batch: "ColumnBatch",
        source: str = "",
        producer: str = "",
        sequence: int | None = None,
    ) -> int | None:
        self._check_publish(name, producer)
        return self._broker.append(name, batch, source, self._name(producer), sequence)

    def check_append(self, name: str, producer: str, sequence: int | None) -> None:
        self._check(PUBLISH, name, client_of(producer))
        self._broker.check_append(name, self._name(producer), sequence)

    def check_lengths(self, payloads: Iterable[bytes]) -> None:
        self._broker.check_lengths(payloads)

    def check_longest(self, batch: Batch) -> None:
        self._broker.check_longest(batch)

    def next_sequence(self, name: str, producer: str) -> int:
        self._check(PUBLISH, name, client_of(producer))
        return self._broker.next_sequence(name, self._name(producer))

    def next_offset(self, name: str) -> int:
        self._check_publish(name)
        return self._broker.next_offset(name)

    # --- transactions

    def begin_transaction(self, producer: str) -> tuple[int, int]:
        self._may()
        return self._broker.begin_transaction(self._name(producer))

    def stage(
        self,
        producer: str,
        counter: int,
        part: str,
        topic: str,
        messages: Sequence[tuple[int, bytes]],
        source: str = "",
    ) -> asyncio.Future[None]:
        self._check(PUBLISH, topic, client_of(producer))
        return self._broker.stage(self._name(producer), counter, part, topic, messages, source)

    def stage_batch(
        self,
        producer: str,
        counter: int,
        part: str,
        topic: str,
        batch: Batch,
        sequence: int | None = None,
        attempt: int | None = None,
    ) -> asyncio.Future[None]:
        self._check(PUBLISH, topic, client_of(producer))
        return self._broker.stage_batch(self._name(producer), counter, part, topic, batch, sequence, attempt)

    def stage_apart(
        self,
        producer: str,
        counter: int,
        part: str,
        batches: Sequence[RowBatch],
        sequence: int | None = None,
        attempt: int | None = None,
    ) -> asyncio.Future[None]:
        for batch in batches:
            self._check(PUBLISH, batch.topic, client_of(producer))
        return self._broker.stage_apart(self._name(producer), counter, part, batches, sequence, attempt)

    async def prepare_transaction(
        self,
        producer: str,
        counter: int,
        parts: Mapping[str, int | None] | Iterable[str] | None = None,
        attempt: int | None = None,
    ) -> None:
        name = self._check_staged(producer, counter)
        await self._broker.prepare_transaction(name, counter, parts, attempt)

    def commit_transaction(
        self,
        producer: str,
        counter: int,
        parts: Mapping[str, int | None] | Iterable[str] | None = None,
        attempt: int | None = None,
        label: str = "",
        forget_after: int | None = None,
    ) -> asyncio.Future[None]:
        name = self._check_staged(producer, counter)
        return self._broker.commit_transaction(name, counter, parts, attempt, label, forget_after)

    def _check_staged(self, producer: str, counter: int) -> str:
        """It may be long ago that it was staged. Returns the producer's name at the broker."""
        self._may()
        name = self._name(producer)
        for topic in self._broker.staged_topics(name, counter):
            self._check_publish(topic, producer)
        return name

    def abort_transaction(
        self, producer: str, counter: int, attempt: int | None = None
    ) -> asyncio.Future[None]:
        self._may()
        return self._broker.abort_transaction(self._name(producer), counter, attempt)

    def is_committed(self, producer: str, counter: int) -> bool:
        self._may()
        return self._broker.is_committed(self._name(producer), counter)

    def last_transaction(self, producer: str) -> int:
        self._may()
        return self._broker.last_transaction(self._name(producer))

    def transaction_label(self, producer: str, counter: int) -> str | None:
        self._may()
        return self._broker.transaction_label(self._name(producer), counter)

    # --- clients and subscriptions

    def new_client(self) -> int:
        self._may()
        return self._broker.new_client()

    def open_session(self, client: str, connection: object) -> None:
        self._may()
        self._broker.open_session(self._name(client), connection)

    def session_holder(self, client: str) -> object:
        return self._broker.session_holder(self._name(client))

    def close_session(self, client: str, connection: object) -> bool:
        return self._broker.close_session(self._name(client), connection)

    def subscribe(
        self,
        client: str,
        filter_: str,
        *,
        durable: bool = True,
        persistent: bool = False,
        earliest: bool = False,
    ) -> Subscription:
        self.check_subscribe(client, filter_)
        return self._broker.subscribe(
            self._name(client), filter_, durable=durable, persistent=persistent, earliest=earliest
        )

    def check_subscribe(self, client: str, filter_: str) -> None:
        """Refuses what `subscribe` would refuse to this user."""
        self._check_filter(SUBSCRIBE, filter_, client_of(client))
        user, broker = self.principal.user, self._broker
        if filter_ in broker.clients.get(self._name(client), {}):
            return
        if broker.registry.by_user[user if self._own else ""] >= broker.limits.max_user_subscriptions:
            raise LimitReached(
                f"User {user!r} has {broker.limits.max_user_subscriptions} subscriptions, as many as "
                "limits.max_user_subscriptions allows."
            )
        topic = self._topics.get(filter_)
        if not is_filter(filter_) and (topic is None or not topic.exists):
            broker.user_topics.check(broker, user, filter_)

    def check_subscribed(self, client: str, filter_: str) -> None:
        """Refuses where nothing may come by a subscription any more that there was."""
        self._check_filter(SUBSCRIBE, filter_, client_of(client))

    def unsubscribe(self, client: str, filter_: str) -> None:
        self._may()
        self._check_known(client, filter_)
        self._broker.unsubscribe(self._name(client), filter_)

    def subscription(self, client: str, name: str) -> Subscription:
        self._may()
        self._check_known(client, name)
        return self._broker.subscription(self._name(client), name)

    def _check_known(self, client: str, name: str) -> None:
        """Where there is no such subscription, the broker would say whether there is such a topic."""
        if name not in self._broker.clients.get(self._name(client), {}) and not is_filter(name):
            self._check(SUBSCRIBE | _SEEN, name, client_of(client))

    async def begun(self, subscription: Subscription) -> None:
        await self._broker.begun(self._owned(subscription))

    def leave(self, subscription: Subscription) -> None:
        self._broker.leave(subscription)

    async def matched_by(self, subscription: Subscription) -> list[Topic]:
        return await self._broker.matched_by(self._owned(subscription))

    def watch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        self._broker.watch(self._owned(subscription), watcher)

    def unwatch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        self._broker.unwatch(subscription, watcher)

    def consumer(
        self, client: str, on_ready: Callable[[], None] = lambda: None, *, unbounded_lag: bool = False
    ) -> Consumer:
        self._may()
        return _GuardedConsumer(self, self._broker, self._name(client), client, on_ready, unbounded_lag)

    # --- topics

    def topic(self, name: str) -> Topic:
        self._check(_SEEN, name)
        return self._broker.topic(name)

    async def listed(self, filter_: str, after: str = "", limit: int | None = None) -> list[Topic]:
        self._check_filter(LIST, filter_)
        found: list[Topic] = []
        while True:
            some = await self._broker.listed(filter_, after, limit)
            on, client = self._may().on, self.principal.client
            found += [topic async for topic in in_portions(some) if on(topic.name, client) & LIST]
            if limit is None or len(some) < limit or len(found) >= limit:
                return found[:limit]
            after = some[-1].name

    def make_topic(
        self,
        name: str,
        *,
        keep_last: bool | None = None,
        keep: Retention | Literal["configured", "unchanged"] = "unchanged",
    ) -> bool:
        if keep == "unchanged" or keep_last is not None or not self._broker.registry.exists(name):
            self._check_publish(name)
        if keep != "unchanged":
            self._check(ADMINISTER, name)
            self._broker.security.observer("keep", **self._who(), topic=name)
        return self._broker.make_topic(name, keep_last=keep_last, keep=keep)

    def empty_topic(self, name: str, *, waited_for: bool = False) -> int:
        self._check(ADMINISTER, name)
        self._broker.security.observer("empty topic", **self._who(), topic=name)
        return self._broker.empty_topic(name, waited_for=waited_for)

    def subscribed_to(self, topic: Topic) -> int:
        """How many subscriptions match the topic: the user's own, unless he administers it."""
        self._check(_SEEN, topic.name)
        if self._permissions.on(topic.name) & ADMINISTER:
            return self._broker.subscribed_to(topic)
        return sum(self._is_own(one.client) for one in self._broker.subscribers_of(topic))

    # --- reading

    async def fetch(
        self,
        subscription: Subscription,
        topics: Iterable[Topic] | None,
        size: int,
        limit: int | None = None,
        *,
        in_turn: bool = False,
    ) -> list[Batch]:
        found = await self._broker.fetch(self._owned(subscription), topics, size, limit, in_turn=in_turn)
        permits = subscription.permits
        return found if permits is None else [batch for batch in found if permits(batch.topic)]

    async def has_pending(self, subscription: Subscription, one: Topic | None) -> bool:
        return await self._broker.has_pending(self._owned(subscription), one)

    async def unacknowledged(self, subscription: Subscription) -> AsyncIterator[tuple[Topic, int]]:
        async for topic, floor in self._broker.unacknowledged(self._owned(subscription)):
            yield topic, floor

    async def read(
        self, topic: Topic, start: int, size: int, stop: int | None = None, overhead: int = 0
    ) -> list[Batch]:
        self._check(READ, topic.name)
        return await self._broker.read(topic, start, size, stop, overhead)

    def scan(self, spans: Sequence[tuple[Topic, int, int]]) -> ReadNext:
        return self._checking(READ, {topic.name for topic, _, _ in spans}, self._broker.scan(spans))

    async def locate(self, topic: Topic, time: int) -> int:
        self._check(_SEEN, topic.name)
        return await self._broker.locate(topic, time)

    async def offset_at(self, topic: Topic, position: int, start: int) -> int:
        self._check(_SEEN, topic.name)
        return await self._broker.offset_at(topic, position, start)

    async def measure(self, topic: Topic, start: int) -> int:
        self._check(_SEEN, topic.name)
        return await self._broker.measure(topic, start)

    # --- acknowledging

    def ack(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        self.ack_all(subscription, topic, ((start, stop),))

    def ack_all(self, subscription: Subscription, topic: Topic, spans: Sequence[Span]) -> None:
        self._check(ACKNOWLEDGE, topic.name, client_of(subscription.client))
        self._broker.ack_all(self._owned(subscription), topic, spans)

    def check_offset(self, topic: Topic, offset: int) -> None:
        self._check(_SEEN, topic.name)
        self._broker.check_offset(topic, offset)

    def rewind(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        self._check(READ, topic.name, client_of(subscription.client))
        self._broker.rewind(self._owned(subscription), topic, offset)

    def move(self, subscription: Subscription, topic: Topic, offset: int) -> int:
        """Forward is acknowledging, back is reading again."""
        client = client_of(subscription.client)
        self._check(ACKNOWLEDGE, topic.name, client)
        if offset < subscription.floor(topic):
            self._check(READ, topic.name, client)
        return self._broker.move(self._owned(subscription), topic, offset)

    async def skip(self, name: str, start: int, stop: int) -> None:
        self._check(ADMINISTER, name)
        self._broker.security.observer("skip", **self._who(), topic=name, first=start, last=stop - 1)
        await self._broker.skip(name, start, stop)

    # --- the log, of which positions are known to everybody who reads

    def mark(self, position: int) -> str:
        return self._broker.mark(position)

    def check_mark(self, mark: str) -> None:
        self._broker.check_mark(mark)

    @property
    def visible_position(self) -> int:
        return self._broker.visible_position

    @property
    def next_position(self) -> int:
        return self._broker.next_position

    @property
    def group(self) -> Pending:
        return self._broker.group

    def commit(self) -> asyncio.Future[None]:
        return self._broker.commit()

    def answer(self, answer: Callable[[StafetaError | None], object]) -> None:
        self._broker.answer(answer)


class _GuardedConsumer(Consumer):
    """What it hands out was cut down as its subscriptions got their cursors. What is taken away later is taken from
    them one after the other, and there may be many: so each batch is looked at, too, and not each message."""

    __slots__ = ("_called", "_client", "_verbs")

    def __init__(
        self,
        verbs: GuardedBroker,
        broker: "Broker",
        name: str,
        called: str,
        on_ready: Callable[[], None],
        unbounded_lag: bool,
    ) -> None:
        super().__init__(broker, name, on_ready, unbounded_lag=unbounded_lag)
        self._verbs = verbs
        self._called = called
        self._client = client_of(called) or verbs.principal.client

    def subscribe(
        self, filter_: str, *, durable: bool, persistent: bool = False, last_of: str | None = None
    ) -> Subscription:
        self._verbs.check_subscribe(self._called, filter_)
        return super().subscribe(filter_, durable=durable, persistent=persistent, last_of=last_of)

    def take(self, size: int, overhead: int = 0) -> list[Batch] | None:
        found = super().take(size, overhead)
        return found and self._allowed(found)

    async def read(self, size: int, overhead: int = 0) -> list[Batch]:
        try:
            return self._allowed(await super().read(size, overhead))
        except StoreDamaged as error:
            if error.topic and not self._on(error.topic) & SUBSCRIBE:
                return []  # nor is it said what is damaged
            raise

    def _allowed(self, batches: list[Batch]) -> list[Batch]:
        on = self._on
        for batch in batches:
            if not on(batch.topic) & SUBSCRIBE:
                return [one for one in batches if on(one.topic) & SUBSCRIBE]
        return batches

    def _on(self, name: str) -> int:
        return self._verbs._now_on(name, self._client)
