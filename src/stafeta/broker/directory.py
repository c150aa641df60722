"""Which topics there are."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Literal

from sortedcontainers import SortedList

from stafeta import names
from stafeta.broker import portions
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.broker.trie import FilterTrie, NameTrie
from stafeta.config.options import Limits
from stafeta.errors import BrokerClosed, InvalidRequest, LimitReached, NoSuchTopic
from stafeta.store.port import KeepRecord, TopicRecord


class Directory:
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
        self.closed = False
        self._retention = retention
        self._filters: FilterTrie[Subscription] = (
            FilterTrie()
        )  # the wildcard ones; a topic has its own at hand
        self._names: NameTrie[Topic] = NameTrie()
        self._sorted: SortedList[str] = SortedList()  # the names, for listing them
        self._removed: dict[Topic, None] = {}  # topics that do not exist any more, the longest removed first
        self._first_offset = 1  # where new topics begin
        self._restored = 0  # where they began when a backup was restored
        self._last_topic = 0
        self.producers = 0  # that are remembered, once for each topic

    def reconfigure(self, limits: Limits, retention: Callable[[str], Retention | None]) -> None:
        """Change limits and retention while running."""
        self.limits = limits
        self._retention = retention
        for topic in self.topics.values():
            topic.retention = topic.own_retention or retention(topic.name)
            self.collector.dirty.add(topic)

    async def listed(self, filter_: str, after: str = "", limit: int | None = None) -> list[Topic]:
        """The topics that a filter matches, in the order of their names. Others get their turn meanwhile."""
        names.check_filter(filter_)
        matches, prefix = names.matcher(filter_), names.prefix_of(filter_)
        found: list[Topic] = []
        first = after < prefix
        start = prefix if first else after
        while True:
            portion = list(islice(self._sorted.irange(start, inclusive=(first, False)), portions.PORTION))
            for name in portion:
                if not name.startswith(prefix):
                    return found
                topic = self.topics[name]
                if topic.exists and matches(name):
                    found.append(topic)
                    if len(found) == limit:
                        return found
            if len(portion) > portions.FEW:
                await asyncio.sleep(0)
            if len(portion) < portions.PORTION:
                return found
            start, first = portion[-1], False

    def waiting(self, name: str) -> list[Subscription]:
        """The wildcard subscriptions that match a topic, and may get what comes to it."""
        found = self._filters.matching(name)
        return [one for one in found if one.permits is None or one.permits(name)]

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
        if not create and not self.waiting(name):
            return self.topic(name)
        self.check_room()
        return self._create(name)

    def exists(self, name: str) -> bool:
        topic = self.topics.get(name)
        return topic is not None and topic.exists

    def check_room(self, topics: int = 1) -> None:
        """Refuses to make so many topics when there are too many, or it is too late."""
        if self.closed:
            raise BrokerClosed("The broker is shutting down.")
        if self.existing + topics > self.limits.max_topics:
            raise LimitReached(f"There are {self.existing} topics, as many as limits.max_topics allows.")

    @property
    def existing(self) -> int:
        """How many topics there are."""
        return len(self.topics) - len(self._removed)

    def _create(self, name: str) -> Topic:
        topic = known = self.topics.get(name)
        if topic is None:
            # Two for one, where the limit was lowered: not all at once, for which everybody would wait.
            for old in list(
                islice(self._removed, min(2, max(len(self._removed) - self.limits.max_topics + 1, 0)))
            ):
                self._forget(old)
            self._last_topic += 1
            record = TopicRecord(self._last_topic, name, self._first_offset, self._first_offset, False, False)
            topic = Topic(record, self._retention(name))
            if self._restored:  # none of what comes before was ever published here
                topic.skipped = ((1, self._restored),)
                self.commits.pending.group.skipped.append((topic.id, 1, self._restored))
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
            self.producers += len(producers or ())
            self._add(topic)
            self._removed = {topic: None, **self._removed}

        pending.undo.append(undo)
        pending.group.forgotten_topics.append(topic.id)
        self._first_offset = pending.group.first_offset = max(before, topic.next)
        topic.producers = None
        self.producers -= len(producers or ())
        del self._removed[topic]
        self._take_out(topic)

    def remove_unless_wanted(self, topic: Topic) -> None:
        """A topic that nobody subscribes to and that keeps nothing goes; its offsets are not used again."""
        if topic.wanted or not topic.exists or self.collector.held or self.waiting(topic.name):
            return
        first = topic.first
        pending = self.commits.pending
        pending.topics.add(topic)

        def undo() -> None:
            topic.exists = True
            topic.first = first
            self._removed.pop(topic, None)
            self.collector.dirty.add(topic)

        pending.undo.append(undo)
        pending.collected += topic.messages(first, topic.next)
        topic.exists = False
        topic.first = topic.next
        self._removed[topic] = None

    def keep_last(self, topic: Topic, keeps: bool = True) -> None:
        """Let the topic keep its last message from now on, or not any more."""
        pending, before = self.commits.pending, topic.keeps_last
        pending.topics.add(topic)
        pending.undo.append(lambda: setattr(topic, "keeps_last", before))
        topic.keeps_last = keeps
        self.collector.dirty.add(topic)

    def _retain(self, topic: Topic, own: Retention | None) -> None:
        """Give a topic a retention of its own, or let the configuration's count again."""
        pending, before = self.commits.pending, topic.own_retention

        def put(own: Retention | None) -> None:
            topic.own_retention, topic.retention = own, own or self._retention(topic.name)
            self.collector.dirty.add(topic)

        pending.undo.append(lambda: put(before))
        pending.group.kept[topic.id] = None if own is None else KeepRecord(own.age, own.size, own.messages)
        put(own)

    def make_topic(
        self,
        name: str,
        *,
        keep_last: bool | None = None,
        keep: Retention | Literal["configured", "unchanged"] = "unchanged",
    ) -> bool:
        """Make a topic where there is none, and say whether it keeps its last message, and how long it keeps others. A
        new one keeps its last, unless it has a retention of its own, since it would go again without. Returns whether
        it is new."""
        if name.startswith(names.RESERVED):
            raise names.reserved(name)
        new = not self.exists(name)
        topic = self.topic_for(name, create=True)
        if keep != "unchanged":
            self._retain(topic, keep if isinstance(keep, Retention) else None)
        keeps = (
            (topic.keeps_last or (new and topic.own_retention is None)) if keep_last is None else keep_last
        )
        if keeps != topic.keeps_last:
            self.keep_last(topic, keeps)
        return new

    def empty_topic(self, name: str, *, waited_for: bool = False) -> int:
        """Release all that a topic holds, and let it keep nothing; it goes, unless somebody subscribes to it. Refused
        where somebody waits for messages of it, unless those are `waited_for`. Returns how many messages went."""
        topic = self.topic(name)
        if name.startswith(names.RESERVED) and not name.startswith(names.PIPELINE):
            raise names.reserved(name)
        holders = [(one, cursor) for one, cursor in topic.cursors() if cursor.floor < topic.visible]
        if holders and not waited_for:
            raise InvalidRequest(
                f"{len(holders)} subscriptions wait for messages of {name!r}, the first that of client "
                f"{holders[0][0].client!r}; they would miss them."
            )
        pending, held = self.commits.pending, topic.messages(topic.first, topic.visible)
        for subscription, cursor in holders:
            if (moves := cursor.ack(((0, topic.visible),))) and subscription.durable:
                pending.moved(subscription, topic, cursor, moves)
        if topic.keeps_last:
            self.keep_last(topic, False)
        if topic.own_retention is not None:
            self._retain(topic, None)
        if topic.first < topic.visible:
            self.collector.release(topic, topic.visible)
        self.remove_unless_wanted(topic)
        return held

    def matching(self, filter_: str) -> list[Topic]:
        """The topics there are for a filter, or the one of this name."""
        if names.is_filter(filter_):
            return [topic for topic in self._names.matching(filter_) if topic.exists]
        topic = self.topics.get(filter_)
        return [topic] if topic is not None and topic.exists else []
