"""Which topics there are, and who subscribes to them."""

from collections.abc import Callable, Iterable

from stafeta.broker import names
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop
from stafeta.broker.cursor import Cursor
from stafeta.broker.limits import Limits
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.broker.trie import FilterTrie, NameTrie
from stafeta.errors import BrokerClosed, LimitReached, NoSuchTopic, NotSubscribed
from stafeta.store.port import Snapshot, TopicRecord


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
        self._last_topic = 0
        self._last_subscription = 0
        self._subscriptions = 0
        self._client_id = 0
        self._taken: set[str] = set()  # ids above it under which somebody counts who never asked for one

    def _restore(self, snapshot: Snapshot) -> dict[int, Topic]:
        """Returns the topics by their ids."""
        topics: dict[int, Topic] = {}
        for record in snapshot.topics:
            topic = Topic(record, self._retention(record.name))
            self.topics[record.name] = topics[record.id] = topic
            self._names.add(record.name, topic)
            self._last_topic = max(self._last_topic, record.id)
            if topic.exists and topic.first < topic.next:
                self.collector.dirty.add(topic)
        subscriptions: dict[int, Subscription] = {}
        for id_, client, filter_, start, durable in snapshot.subscriptions:
            subscription = Subscription(id_, client, filter_, start, durable=durable, lasting=True)
            subscription.away = not durable
            subscriptions[id_] = subscription
            self._enter(subscription)
            self._last_subscription = max(self._last_subscription, id_)
            if not durable:
                for topic in self.matching(filter_):
                    topic.cursors[subscription] = Cursor(topic.next)
                    subscription.topics[topic] = None
        for subscription_id, topic_id, (floor, above) in snapshot.cursors:
            subscription, topic = subscriptions[subscription_id], topics[topic_id]
            topic.cursors[subscription] = Cursor(floor, above)
            subscription.topics[topic] = None
        self._client_id = snapshot.client_id
        return topics

    def reconfigure(self, limits: Limits, retention: Callable[[str], Retention | None]) -> None:
        """Change limits and retention while running."""
        self.limits = limits
        self._retention = retention
        for topic in self.topics.values():
            topic.retention = retention(topic.name)
            self.collector.dirty.add(topic)

    # --- topics

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
        if name not in self.topics and len(self.topics) >= self.limits.topics:
            raise LimitReached(f"There are {len(self.topics)} topics, as many as limits.max_topics allows.")

    def _create(self, name: str, subscribed: Iterable[Subscription]) -> Topic:
        topic = known = self.topics.get(name)
        if topic is None:
            self._last_topic += 1
            topic = Topic(TopicRecord(self._last_topic, name, 1, 1, False, False), self._retention(name))
            self.topics[name] = topic
            self._names.add(name, topic)
        made = topic
        made.exists = True
        made.low = made.first = made.next
        pending = self.commits.pending
        pending.topics.add(made)

        def undo() -> None:
            made.exists = False
            if known is None:
                del self.topics[name]

        pending.undo.append(undo)
        for subscription in subscribed:
            self._point(subscription, made, made.next)
        return made

    def remove_unless_wanted(self, topic: Topic) -> None:
        """A topic that nobody subscribes to and that keeps nothing goes; its offsets are not used again."""
        if topic.wanted or not topic.exists:
            return
        first = topic.first
        pending = self.commits.pending
        pending.topics.add(topic)

        def undo() -> None:
            topic.exists = True
            topic.first = first

        pending.undo.append(undo)
        topic.exists = False
        topic.first = topic.next

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
            pending.cursors[subscription, topic] = topic.cursors[subscription] if durable else None

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
            pending.cursors[subscription, topic] = cursor

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
