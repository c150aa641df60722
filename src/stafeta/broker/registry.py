"""Who subscribes to which topics."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from stafeta import names
from stafeta.broker import portions
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop
from stafeta.broker.cursor import Cursor
from stafeta.broker.directory import Directory
from stafeta.broker.portions import Portions, in_portions
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.config.options import Limits
from stafeta.errors import BrokerClosed, LimitReached, NotSubscribed
from stafeta.store.port import Snapshot


class Owners(Protocol):
    """Whose the clients are, by their names."""

    def permits(self, client: str) -> Callable[[str], bool] | None:
        """Of which topics a client may get anything; None: nobody is asked."""

    def exists(self, client: str) -> bool: ...


class Registry(Directory):
    def __init__(
        self,
        commits: CommitLoop,
        collector: Collector,
        limits: Limits,
        retention: Callable[[str], Retention | None],
    ) -> None:
        super().__init__(commits, collector, limits, retention)
        self.clients: dict[str, dict[str, Subscription]] = {}  # by client and filter
        self.portions = Portions(self._next_turn)
        commits.add_wildcard_cursors = self._add_wildcard_cursors
        self._beginning: dict[Subscription, None] = {}  # with the earliest, and are not done with it
        self.last_subscription = 0  # the id of the one that came last
        self.subscriptions = 0  # how many there are
        self._client_id = 0
        self._taken: set[str] = set()  # ids above it under which somebody counts who never asked for one
        self.owners: Owners | None = None  # where users are configured
        self.by_user: Counter[str] = Counter()  # how many subscriptions each has; "": those without a user

    def restore(self, snapshot: Snapshot) -> dict[int, Topic]:
        """Returns the topics by their ids."""
        topics: dict[int, Topic] = {}
        for record in snapshot.topics:
            topic = Topic(record, self._retention(record.name))
            self.topics[record.name] = topics[record.id] = topic
            self._names.add(record.name, topic)
            if not topic.exists:
                self._removed[topic] = None
        self._sorted.update(self.topics)
        for id_, keep in snapshot.kept:
            topics[id_].own_retention = topics[id_].retention = Retention(*keep)
        for id_, start, stop in snapshot.skipped:
            topics[id_].skipped += ((start, stop),)
        subscriptions: dict[int, Subscription] = {}
        for id_, client, filter_, start, durable in snapshot.subscriptions:
            subscription = Subscription(id_, client, filter_, start, durable=durable, persistent=True)
            subscription.away = not durable
            subscriptions[id_] = subscription
            self._enter(subscription)
            if not durable and not subscription.wildcard:
                for topic in self.matching(filter_):
                    topic.add(subscription, Cursor(topic.next))
        for subscription_id, topic_id, (floor, above) in snapshot.cursors:
            topics[topic_id].add(subscriptions[subscription_id], Cursor(floor, above))
        if snapshot.held:
            self.collector.held = True
            self._complete_cursors(subscriptions.values())
        for subscription in list(self._beginning):  # a broker that has ended has not come to that
            while subscription.beginning:
                self.begin_portion(subscription)
        for topic in topics.values():
            if topic.exists and (topic.first < topic.next or not topic.subscribers):
                self.collector.dirty.add(topic)
        self._client_id = snapshot.client_id
        self._first_offset = snapshot.first_offset
        self._restored = snapshot.restored
        self._last_topic, self.last_subscription = snapshot.last_topic, snapshot.last_subscription
        return topics

    def _complete_cursors(self, subscriptions: Iterable[Subscription]) -> None:
        """Some were damaged: whoever has none where he may have had one begins with all that there is."""
        for subscription in subscriptions:
            for topic in self.matching(subscription.filter) if subscription.durable else ():
                empty = subscription.wildcard and topic.first == topic.next
                if topic not in subscription.cursors and not empty:
                    topic.add(subscription, topic.cursor(topic.first))

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

    def reserve_client(self, client: str) -> None:
        """Never give this id to anyone: his messages would be taken for retries of what was published under it."""
        if client.isdecimal() and int(client) > self._client_id:
            self._taken.add(client)

    def subscription(self, client: str, name: str) -> Subscription:
        """The client's subscription to this filter, or one that covers this topic."""
        filters = self.clients.get(client, {})
        found = filters.get(name)
        if found is None and not names.is_filter(name):
            found = next((s for s in filters.values() if s.wildcard and s.covers(name)), None)
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
        persistent: bool = False,
        earliest: bool = False,
    ) -> Subscription:
        """Subscribing again to the same filter changes nothing, except that a live subscription becomes durable, or a
        durable one merely persistent, where the caller asks for that. A new one begins with what comes, or with
        the earliest that its topics hold: for a wildcard one wait until it has `begun`."""
        found = self.clients.get(client, {}).get(filter_)
        if found is not None:
            if durable != found.durable and (durable or persistent):
                self._change(found, durable=durable)
            return found
        if self.closed:
            raise BrokerClosed("The broker is shutting down.")
        names.check_client(client)
        names.check_filter(filter_)
        coming_and_going = len(
            self.portions
        )  # else who subscribes and leaves in a loop makes work without end
        if self.subscriptions + coming_and_going >= self.limits.max_subscriptions:
            raise LimitReached(
                f"There are {self.subscriptions} subscriptions, and {coming_and_going} that begin or end, as many as "
                "limits.max_subscriptions allows."
            )
        if not names.is_filter(filter_):
            self.topic_for(filter_, create=True)
        self.last_subscription += 1
        start = self.commits.position - 1
        if earliest:
            start = -1 if names.is_filter(filter_) else 0
        subscription = Subscription(
            self.last_subscription, client, filter_, start, durable=durable, persistent=persistent
        )
        self._enter(subscription)
        pending = self.commits.pending
        pending.undo.append(lambda: self._leave(subscription) if self._has(subscription) else None)
        if subscription.persistent:
            pending.group.subscriptions[subscription.id] = subscription.record()
        if subscription.beginning:
            self.begin_portion(subscription)
        if not subscription.wildcard:
            for topic in self.matching(filter_):
                self._add_cursor(subscription, topic, topic.first if earliest else topic.next)
        return subscription

    def begin_portion(self, subscription: Subscription) -> None:
        """Let a subscription begin with the earliest of some more topics. With the last it is not `beginning` any more;
        a broker that is killed before goes on with it when it starts."""
        if not subscription.beginning or not self._has(subscription):
            return
        pending = self.commits.pending

        def undo() -> None:
            subscription.unvisited = None  # what was looked at has to be once more

        pending.undo.append(undo)
        if subscription.unvisited is None:
            subscription.unvisited = self._names.each(subscription.filter)
        portion = list(islice(subscription.unvisited, portions.PORTION))
        permits = subscription.permits or (lambda name: True)
        for topic in portion:
            if topic is not None and topic.exists and permits(topic.name):
                self._begin(subscription, topic)
        if len(portion) == portions.PORTION:
            return

        def undo_all() -> None:
            subscription.start = -1
            if self._has(subscription):
                self._beginning[subscription] = None

        pending.undo.append(undo_all)
        subscription.start = 0
        self._beginning.pop(subscription, None)
        if subscription.persistent:
            pending.group.subscriptions[subscription.id] = subscription.record()

    def begin_with(self, topic: Topic) -> None:
        """Call before anything of a topic goes: those who are beginning with the earliest would miss it."""
        for subscription in self._beginning:
            if subscription.covers(topic.name):
                self._begin(subscription, topic)

    def _begin(self, subscription: Subscription, topic: Topic) -> None:
        if topic not in subscription.cursors and topic.first < topic.next:
            self._add_cursor(subscription, topic, topic.first)

    async def begun(self, subscription: Subscription) -> None:
        """Returns when a subscription has begun with all topics, or raises; the next commit makes the last durable."""
        while subscription.beginning and self._has(subscription):
            commit = self.commits.commit()  # of the portion before
            await asyncio.wait([commit])
            commit.result()
            self.begin_portion(subscription)

    def _add_wildcard_cursors(self, topic: Topic) -> None:
        """Something comes to the topic: give each wildcard subscription a cursor on it that has none."""
        topic.wildcard_generation = self.commits.wildcard_generation
        for subscription in self.waiting(topic.name):
            if topic not in subscription.cursors and not subscription.away:
                self._add_cursor(subscription, topic, topic.first if subscription.beginning else topic.next)

    def subscribed_to(self, topic: Topic) -> int:
        """How many subscriptions match the topic."""
        return len(self.subscribers_of(topic))

    def subscribers_of(self, topic: Topic) -> list[Subscription]:
        return [*self.waiting(topic.name), *(one for one in topic.subscribers if not one.wildcard)]

    async def matched_by(self, subscription: Subscription) -> list[Topic]:
        """The topics that a subscription matches, in the order of their names for a wildcard."""
        if not subscription.wildcard:
            return list(subscription.cursors)
        found, permits = await self.listed(subscription.filter), subscription.permits
        return found if permits is None else [topic for topic in found if permits(topic.name)]

    async def count(self, subscription: Subscription) -> int:
        """How many topics a subscription matches."""
        if not subscription.wildcard:
            return len(subscription.cursors)
        each = in_portions(self._names.each(subscription.filter))
        permits = subscription.permits or (lambda name: True)
        return sum([topic is not None and topic.exists and permits(topic.name) async for topic in each])

    def _change(self, subscription: Subscription, *, durable: bool) -> None:
        if durable:
            self.reattach(subscription)
        before = subscription.durable, subscription.persistent, subscription.start
        cursors = subscription.cursors
        subscription.durable, subscription.persistent = durable, True
        if durable and subscription.wildcard:  # where nothing waits for it, it gets one with the next message
            waiting = [(topic, cursor) for topic, cursor in cursors.items() if cursor.floor < topic.next]
            subscription.cursors = dict(waiting)
            self.commits.wildcards_changed()
        pending = self.commits.pending

        def undo() -> None:
            subscription.durable, subscription.persistent, subscription.start = before
            if subscription.cursors is not cursors:  # its client has come back since, or it has fewer
                subscription.cursors = cursors
                for topic, cursor in cursors.items():
                    topic.add(subscription, cursor)
            self._update_presence(subscription)

        pending.undo.append(undo)
        pending.group.subscriptions[subscription.id] = subscription.record()
        pending.group.reset.add(subscription.id)
        for topic, cursor in subscription.cursors.items() if durable else ():
            pending.keep(subscription, topic, cursor)

    def _update_presence(self, subscription: Subscription) -> None:
        """Its client may have come or gone since what is now undone."""
        subscription.away = subscription.persistent and not subscription.durable and not subscription.watchers
        if subscription.beginning:
            self._beginning[subscription] = None
        self.commits.wildcards_changed()

    def reattach(self, subscription: Subscription) -> None:
        """The client of a persistent subscription is back: what it gets begins now, unless it is durable."""
        if not subscription.away:
            return
        subscription.away = False
        subscription.start = self.commits.position - 1
        self._beginning.pop(subscription, None)
        # Those that it had stay as they are: it has them again where it was durable, and is no more only until undone.
        before, subscription.cursors = subscription.cursors, {}
        if subscription.wildcard:
            self.commits.wildcards_changed()
            return
        for topic in before:
            cursor = subscription.cursors[topic] = Cursor(topic.next)
            self.commits.pending.undo.append(partial(_stay_within, cursor, topic))
            self.collector.dirty.add(topic)

    def leave(self, subscription: Subscription) -> None:
        """The client has gone: end the subscription, unless it is persistent."""
        if subscription.durable or not self._has(subscription):
            return
        if not subscription.persistent:
            self.unsubscribe(subscription.client, subscription.filter)
            return
        subscription.away = True
        self.portions.do(self._look_at(list(subscription.cursors)))

    def _next_turn(self, callback: Callable[[], None]) -> None:
        """A group that changes many topics takes its time when it is written: others go into the next."""
        if self.closed:
            return  # the rest is done after the next start
        pending = self.commits.pending
        if len(pending.topics) < portions.PORTION:
            asyncio.get_running_loop().call_soon(callback)
        else:
            pending.sealed.append(callback)
            self.commits.commit()

    def _look_at(self, topics: Iterable[Topic]) -> Iterator[None]:
        for topic in topics:
            self.collector.dirty.add(topic)
            yield

    def unsubscribe(self, client: str, filter_: str) -> None:
        """Release all that the subscription held."""
        subscription = self.subscription(client, filter_)
        if subscription.filter != filter_:
            raise NotSubscribed(
                f"Client {client!r} is subscribed to {subscription.filter!r}, not to {filter_!r} alone."
            )
        cursors = self._leave(subscription)
        pending = self.commits.pending

        def undo() -> None:
            if not subscription.persistent:
                return  # its connection has gone, or goes because of this
            self._enter(subscription)
            self._update_presence(subscription)
            subscription.cursors = cursors
            for topic, cursor in cursors.items() if not subscription.wildcard else ():
                topic.add(subscription, cursor)

        pending.undo.append(undo)
        if subscription.persistent:
            pending.group.subscriptions[subscription.id] = None
        if not subscription.wildcard:
            for topic in cursors:
                self.collector.dirty.add(topic)
                self.remove_unless_wanted(topic)
        elif subscription.persistent:
            pending.done.add_done_callback(partial(self._ended, subscription))
        else:
            self.portions.do(self._detach(subscription))

    def _ended(self, subscription: Subscription, stored: "asyncio.Future[None]") -> None:
        if not stored.cancelled() and stored.exception() is None:
            self.portions.do(self._detach(subscription))

    def _detach(self, subscription: Subscription) -> Iterator[None]:
        """Take a wildcard subscription that has ended from its topics. Where a broker is killed before, collection
        removes those that go with it."""
        for topic in self._names.each(subscription.filter):
            if topic is not None:
                if subscription in topic.subscribers or not topic.subscribers:
                    self.collector.dirty.add(topic)
                topic.discard(subscription)
                self.remove_unless_wanted(topic)
            yield

    def _has(self, subscription: Subscription) -> bool:
        return self.clients.get(subscription.client, {}).get(subscription.filter) is subscription

    def _enter(self, subscription: Subscription) -> None:
        if self.owners is not None:
            subscription.permits = self.owners.permits(subscription.client)
            user, client = names.owner_of(subscription.client)
            self.reserve_client(client)
            self.by_user[user] += 1
        self.clients.setdefault(subscription.client, {})[subscription.filter] = subscription
        self.subscriptions += 1
        if subscription.wildcard:
            self._filters.add(subscription.filter, subscription)
            self.commits.wildcards_changed()
        if subscription.beginning:
            self._beginning[subscription] = None

    def _leave(self, subscription: Subscription) -> dict[Topic, Cursor]:
        """Returns the cursors that it had."""
        filters = self.clients[subscription.client]
        del filters[subscription.filter]
        if not filters:
            del self.clients[subscription.client]
        self.subscriptions -= 1
        if self.owners is not None:
            self.by_user[names.owner_of(subscription.client)[0]] -= 1
        if subscription.wildcard:
            self._filters.discard(subscription.filter, subscription)
        self._beginning.pop(subscription, None)
        cursors, subscription.cursors = subscription.cursors, {}
        for topic in cursors if not subscription.wildcard else ():
            topic.discard(subscription)
        return cursors

    def _add_cursor(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        """Give the subscription a cursor on the topic."""
        cursor = topic.cursor(offset)
        topic.add(subscription, cursor)
        if topic.first < topic.next:
            self.collector.dirty.add(topic)  # what it held before may be wanted by nobody
        pending = self.commits.pending
        if subscription.durable:
            pending.keep(subscription, topic, cursor)

        def undo() -> None:
            topic.discard(subscription)
            topic.wildcard_generation = 0

        pending.undo.append(undo)

    # --- permissions

    def recheck(self) -> Iterator[None]:
        """Take from subscriptions what they may not get any more; those that are being read from come first. What they
        held is released, as when they end."""
        self.commits.wildcards_changed()  # and what they may get now comes to them
        everyone = [one for filters in self.clients.values() for one in filters.values()]
        for subscription in sorted(everyone, key=lambda one: not one.watchers):
            if self.owners is None or not self._has(subscription):
                continue
            permits = subscription.permits = self.owners.permits(subscription.client)
            if permits is None:
                continue
            if not self.owners.exists(subscription.client) or not (
                subscription.wildcard or permits(subscription.filter)
            ):
                self._end_for_good(subscription)
                yield
                continue
            lost: list[Topic] = []
            for topic in list(subscription.cursors) if subscription.wildcard else ():
                if not permits(topic.name) and topic in subscription.cursors:
                    self._drop_cursor(subscription, topic)
                    lost.append(topic)
                yield
            if lost and subscription.durable and self._has(subscription):
                pending = self.commits.pending
                pending.group.subscriptions[subscription.id] = subscription.record()
                pending.group.reset.add(subscription.id)
                for topic, cursor in subscription.cursors.items():
                    pending.keep(subscription, topic, cursor)
            yield

    def _end_for_good(self, subscription: Subscription) -> None:
        """End one also where that cannot be stored: the next start of the broker ends it again."""
        self.collector.dirty.update(self._leave(subscription))
        pending = self.commits.pending
        if subscription.persistent:
            pending.group.subscriptions[subscription.id] = None
        for key in [key for key in pending.cursors if key[0] is subscription]:
            del pending.cursors[key]
        if subscription.wildcard:
            self.portions.do(self._detach(subscription))

    def _drop_cursor(self, subscription: Subscription, topic: Topic) -> None:
        topic.discard(subscription)
        self.commits.pending.cursors.pop((subscription, topic), None)
        self.collector.dirty.add(topic)

    # --- watching

    def watch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        """Call `watcher` with a topic whenever there is something new on it for the subscription."""
        subscription.watchers.append(watcher)
        for topic in subscription.cursors if not subscription.wildcard else ():
            topic.watch(subscription)

    def unwatch(self, subscription: Subscription, watcher: Callable[[Topic], None]) -> None:
        subscription.watchers.remove(watcher)
        if not subscription.watchers and not subscription.wildcard:
            for topic in subscription.cursors:
                topic.unwatch(subscription)


def _stay_within(cursor: Cursor, topic: Topic) -> None:
    """Call where what was on its way to the disk is undone: what comes instead has the same offsets."""
    cursor.floor = min(cursor.floor, topic.visible)
