"""Which topics there are, and who subscribes to them."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from sortedcontainers import SortedList

from stafeta import names
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop
from stafeta.broker.cursor import Cursor
from stafeta.broker.limits import Limits
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.broker.trie import FilterTrie, NameTrie
from stafeta.errors import BrokerClosed, LimitReached, NoSuchTopic, NotSubscribed
from stafeta.store.port import Snapshot, TopicRecord

PORTION = 1000  # names looked at before others get their turn


class Registry:
    """A topic exists once someone subscribes to it, or a door that creates topics publishes to it; it goes when nobody
    subscribes to it and it keeps nothing."""

    def __init__(
        self,
        commits: CommitLoop,
        collector: Collector,
        limits: Limits,
        retention: Callable[[str], Retention | None],
    ) -> None:
        self.commits = commits
        self.collector = collector
        self.limits = limits
        self.topics: dict[str, Topic] = {}  # those that were removed included, which do not `exist`
        self.clients: dict[str, dict[str, Subscription]] = {}  # by client and filter
        self.closed = False
        self._retention = retention
        self._filters: FilterTrie[Subscription] = FilterTrie()  # the wide ones; a topic has its own at hand
        self._names: NameTrie[Topic] = NameTrie()
        self._sorted: SortedList[str] = SortedList()  # the names, for listing them
        self._removed: dict[Topic, None] = {}  # topics that do not exist any more, the longest removed first
        self._first_offset = 1  # where new topics begin
        self._last_topic = 0
        self._last_subscription = 0
        self._subscriptions = 0
        self._client_id = 0
        self._producers = 0  # that are remembered, once for each topic
        self._taken: set[str] = set()  # ids above it under which somebody counts who never asked for one

    def _restore(self, snapshot: Snapshot) -> dict[int, Topic]:
        """Returns the topics by their ids."""
        topics: dict[int, Topic] = {}
        for record in snapshot.topics:
            topic = Topic(record, self._retention(record.name))
            self.topics[record.name] = topics[record.id] = topic
            self._names.add(record.name, topic)
            if not topic.exists:
                self._removed[topic] = None
            elif topic.first < topic.next:
                self.collector.dirty.add(topic)
        self._sorted.update(self.topics)
        for id_, start, stop in snapshot.skipped:
            topics[id_].skipped += ((start, stop),)
        subscriptions: dict[int, Subscription] = {}
        for id_, client, filter_, start, durable in snapshot.subscriptions:
            subscription = Subscription(id_, client, filter_, start, durable=durable, lasting=True)
            subscription.away = not durable
            subscriptions[id_] = subscription
            self._enter(subscription)
            if not durable:
                for topic in self.matching(filter_):
                    topic.cursors[subscription] = Cursor(topic.next)
                    subscription.topics[topic] = None
        for subscription_id, topic_id, (floor, above) in snapshot.cursors:
            subscription, topic = subscriptions[subscription_id], topics[topic_id]
            topic.cursors[subscription] = Cursor(floor, above)
            subscription.topics[topic] = None
        if snapshot.held:
            self.collector.held = True
            self._complete_cursors(subscriptions.values())
        self._client_id = snapshot.client_id
        self._first_offset = snapshot.first_offset
        self._last_topic, self._last_subscription = snapshot.last_topic, snapshot.last_subscription
        return topics

    def _complete_cursors(self, subscriptions: Iterable[Subscription]) -> None:
        """Some were damaged: whoever has none where he should begins with all that there is."""
        for subscription in subscriptions:
            for topic in self.matching(subscription.filter) if subscription.durable else ():
                if subscription not in topic.cursors:
                    topic.cursors[subscription] = Cursor(topic.first)
                    subscription.topics[topic] = None

    def reconfigure(self, limits: Limits, retention: Callable[[str], Retention | None]) -> None:
        """Change limits and retention while running."""
        self.limits = limits
        self._retention = retention
        for topic in self.topics.values():
            topic.retention = retention(topic.name)
            self.collector.dirty.add(topic)

    # --- topics

    async def listed(self, filter_: str, after: str = "", limit: int | None = None) -> list[Topic]:
        """The topics that a filter matches, in the order of their names. Others get their turn meanwhile."""
        names.check_filter(filter_)
        matches, prefix = names.matcher(filter_), names.prefix_of(filter_)
        found: list[Topic] = []
        first = after < prefix
        start = prefix if first else after
        while True:
            portion = list(islice(self._sorted.irange(start, inclusive=(first, False)), PORTION))
            for name in portion:
                if not name.startswith(prefix):
                    return found
                topic = self.topics[name]
                if topic.exists and matches(name):
                    found.append(topic)
                    if len(found) == limit:
                        return found
            if len(portion) < PORTION:
                return found
            start, first = portion[-1], False
            await asyncio.sleep(0)

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None or not topic.exists:
            raise NoSuchTopic(f"The topic {name!r} does not exist. Subscribing to it creates it.")
        return topic

    def topic_for(self, name: str, *, create: bool) -> Topic:
        """The topic to publish to. One that a filter is waiting for is made."""
        topic = self.topics.get(name)
        if topic is not None and topic.exists:
            return topic
        names.check_name(name)
        subscribed = self._filters.matching(name)
        if not subscribed and not create:
            return self.topic(name)
        self.check_room(name)
        return self._create(name, subscribed)

    def check_room(self, name: str) -> None:
        """Refuses to make a topic when there are too many, or it is too late."""
        if self.closed:
            raise BrokerClosed("The broker is shutting down.")
        existing = len(self.topics) - len(self._removed)
        if existing >= self.limits.topics:
            raise LimitReached(f"There are {existing} topics, as many as limits.max_topics allows.")

    def _create(self, name: str, subscribed: Iterable[Subscription]) -> Topic:
        topic = known = self.topics.get(name)
        if topic is None:
            # Two for one, where the limit was lowered: not all at once, for which everybody would wait.
            for old in list(
                islice(self._removed, min(2, max(len(self._removed) - self.limits.topics + 1, 0)))
            ):
                self._forget(old)
            self._last_topic += 1
            record = TopicRecord(self._last_topic, name, self._first_offset, self._first_offset, False, False)
            topic = Topic(record, self._retention(name))
            self._add(topic)
        made = topic
        made.exists = True
        self._removed.pop(made, None)
        made.low = made.first = made.next
        pending = self.commits.pending
        pending.topics.add(made)

        def undo() -> None:
            made.exists = False
            if known is None:
                self._take_out(made)
            else:
                self._removed[made] = None

        pending.undo.append(undo)
        for subscription in subscribed:
            self._point(subscription, made, made.next)
        return made

    def _add(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._names.add(topic.name, topic)
        self._sorted.add(topic.name)

    def _take_out(self, topic: Topic) -> None:
        del self.topics[topic.name]
        self._names.discard(topic.name)
        self._sorted.remove(topic.name)

    def _forget(self, topic: Topic) -> None:
        """A removed topic is not remembered any more. Should there be one of its name again, it begins where none has
        been before, so that no offset comes twice."""
        before, producers = self._first_offset, topic.producers
        pending = self.commits.pending

        def undo() -> None:
            self._first_offset = before
            topic.producers = producers
            self._producers += len(producers or ())
            self._add(topic)
            self._removed = {topic: None, **self._removed}

        pending.undo.append(undo)
        pending.group.forgotten_topics.append(topic.id)
        self._first_offset = pending.group.first_offset = max(before, topic.next)
        topic.producers = None
        self._producers -= len(producers or ())
        del self._removed[topic]
        self._take_out(topic)

    def remove_unless_wanted(self, topic: Topic) -> None:
        """A topic that nobody subscribes to and that keeps nothing goes; its offsets are not used again."""
        if topic.wanted or not topic.exists or self.collector.held:
            return
        first = topic.first
        pending = self.commits.pending
        pending.topics.add(topic)

        def undo() -> None:
            topic.exists = True
            topic.first = first
            self._removed.pop(topic, None)

        pending.undo.append(undo)
        topic.exists = False
        topic.first = topic.next
        self._removed[topic] = None

    def keep_last(self, topic: Topic) -> None:
        """Let the topic keep its last message from now on."""
        pending = self.commits.pending
        pending.topics.add(topic)
        pending.undo.append(lambda: setattr(topic, "keeps_last", False))
        topic.keeps_last = True

    # --- subscriptions

    def new_client(self) -> int:
        """A client id that was never given out, nor is in use."""
        before = self._client_id
        self._client_id += 1
        while str(self._client_id) in self.clients or str(self._client_id) in self._taken:
            self._client_id += 1
        pending = self.commits.pending
        pending.group.client_id = self._client_id
        pending.undo.append(lambda: setattr(self, "_client_id", before))
        return self._client_id

    def _take(self, client: str) -> None:
        """Never give this id to anyone: his messages would be taken for retries of what was published under it."""
        if client.isdecimal() and int(client) > self._client_id:
            self._taken.add(client)

    def subscription(self, client: str, name: str) -> Subscription:
        """The client's subscription to this filter, or one that covers this topic."""
        filters = self.clients.get(client, {})
        found = filters.get(name)
        if found is None and not names.is_filter(name):
            found = next((s for s in filters.values() if s.wide and s.covers(name)), None)
        if found is None:
            if not names.is_filter(name):
                self.topic(name)
            raise NotSubscribed(f"Client {client!r} has no subscription to {name!r}.")
        return found

    def subscribe(
        self,
        client: str,
        filter_: str,
        *,
        durable: bool = True,
        lasting: bool = False,
        earliest: bool = False,
    ) -> Subscription:
        """Subscribing again to the same filter changes nothing, except that a live subscription becomes durable, or a
        durable one merely lasting, where that is asked for. A new one begins with what comes, or with the earliest
        that its topics hold."""
        found = self.clients.get(client, {}).get(filter_)
        if found is not None:
            if durable != found.durable and (durable or lasting):
                self._change(found, durable=durable)
            return found
        if self.closed:
            raise BrokerClosed("The broker is shutting down.")
        names.check_client(client)
        names.check_filter(filter_)
        if self._subscriptions >= self.limits.subscriptions:
            raise LimitReached(
                f"There are {self._subscriptions} subscriptions, as many as limits.max_subscriptions allows."
            )
        if not names.is_filter(filter_):
            self.topic_for(filter_, create=True)
        self._last_subscription += 1
        start = 0 if earliest else self.commits.position - 1
        subscription = Subscription(
            self._last_subscription, client, filter_, start, durable=durable, lasting=lasting
        )
        self._enter(subscription)
        pending = self.commits.pending
        pending.undo.append(lambda: self._leave(subscription) if self._has(subscription) else None)
        if subscription.lasting:
            pending.group.subscriptions[subscription.id] = subscription.record()
        for topic in self.matching(filter_):
            self._point(subscription, topic, topic.first if earliest else topic.next)
        return subscription

    def matching(self, filter_: str) -> list[Topic]:
        """The topics there are for a filter, or the one of this name."""
        if names.is_filter(filter_):
            return [topic for topic in self._names.matching(filter_) if topic.exists]
        topic = self.topics.get(filter_)
        return [topic] if topic is not None and topic.exists else []

    def _change(self, subscription: Subscription, *, durable: bool) -> None:
        before = subscription.durable, subscription.lasting
        subscription.durable, subscription.lasting = durable, True
        pending = self.commits.pending

        def undo() -> None:
            subscription.durable, subscription.lasting = before
            self._look_for(subscription)

        pending.undo.append(undo)
        pending.group.subscriptions[subscription.id] = subscription.record()
        for topic in subscription.topics:
            if durable:
                pending.keep(subscription, topic, topic.cursors[subscription])
            else:
                pending.cursors[subscription, topic] = None

    def _look_for(self, subscription: Subscription) -> None:
        """Its client may have come or gone since what is now undone."""
        subscription.away = subscription.lasting and not subscription.durable and not subscription.watchers

    def attend(self, subscription: Subscription) -> None:
        """The client of a lasting subscription is back: what it gets begins now, unless it is durable."""
        if not subscription.away:
            return
        subscription.away = False
        for topic in subscription.topics:
            topic.cursors[subscription] = Cursor(topic.next)
        self.collector.dirty.update(subscription.topics)

    def leave(self, subscription: Subscription) -> None:
        """The client has gone: end the subscription, unless it is lasting."""
        if subscription.durable or not self._has(subscription):
            return
        if not subscription.lasting:
            self.unsubscribe(subscription.client, subscription.filter)
            return
        subscription.away = True
        self.collector.dirty.update(subscription.topics)

    def unsubscribe(self, client: str, filter_: str) -> None:
        """Release all that the subscription held."""
        subscription = self.subscription(client, filter_)
        if subscription.filter != filter_:
            raise NotSubscribed(
                f"Client {client!r} is subscribed to {subscription.filter!r}, not to {filter_!r} alone."
            )
        cursors = {topic: topic.cursors[subscription] for topic in subscription.topics}
        self._leave(subscription)
        pending = self.commits.pending

        def undo() -> None:
            if not subscription.lasting:
                return  # its connection has gone, or goes because of this
            self._enter(subscription)
            self._look_for(subscription)
            for topic, cursor in cursors.items():
                topic.cursors[subscription] = cursor
                subscription.topics[topic] = None
                if subscription.watchers:
                    topic.watch(subscription)

        pending.undo.append(undo)
        if subscription.lasting:
            pending.group.subscriptions[subscription.id] = None
            for topic in cursors:
                pending.cursors.pop((subscription, topic), None)
        for topic in cursors:
            self.collector.dirty.add(topic)
            self.remove_unless_wanted(topic)

    def _has(self, subscription: Subscription) -> bool:
        return self.clients.get(subscription.client, {}).get(subscription.filter) is subscription

    def _enter(self, subscription: Subscription) -> None:
        self.clients.setdefault(subscription.client, {})[subscription.filter] = subscription
        self._subscriptions += 1
        if subscription.wide:
            self._filters.add(subscription.filter, subscription)

    def _leave(self, subscription: Subscription) -> None:
        filters = self.clients[subscription.client]
        del filters[subscription.filter]
        if not filters:
            del self.clients[subscription.client]
        self._subscriptions -= 1
        if subscription.wide:
            self._filters.discard(subscription.filter, subscription)
        for topic in subscription.topics:
            del topic.cursors[subscription]
            topic.unwatch(subscription)
        subscription.topics.clear()

    def _point(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        """Give the subscription a cursor on the topic."""
        cursor = topic.cursors[subscription] = Cursor(offset)
        subscription.topics[topic] = None
        if topic.first < topic.next:
            self.collector.dirty.add(topic)  # what it held before may be wanted by nobody
        if subscription.watchers:
            topic.watch(subscription)
        pending = self.commits.pending
        if subscription.durable:
            pending.keep(subscription, topic, cursor)

        def undo() -> None:
            topic.cursors.pop(subscription, None)
            topic.unwatch(subscription)
            subscription.topics.pop(topic, None)

        pending.undo.append(undo)

    # --- watching

    def watch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        """Call `watcher` with a topic whenever there is something new on it for the subscription."""
        subscription.watchers.append(watcher)
        for topic in subscription.topics:
            topic.watch(subscription)

    def unwatch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        subscription.watchers.remove(watcher)
        if not subscription.watchers:
            for topic in subscription.topics:
                topic.unwatch(subscription)
