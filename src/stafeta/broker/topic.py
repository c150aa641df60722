"""Topics and subscriptions: what the broker knows of each while it runs."""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stafeta.broker.cursor import Cursor, MovedCursor, Span
from stafeta.broker.producer import Producer
from stafeta.message import Batch
from stafeta.names import RESERVED, is_filter, matcher
from stafeta.ranges import merged, union, without
from stafeta.store.port import SubscriptionRecord, TopicRecord

log = logging.getLogger("stafeta.broker")

MAX_DAMAGED = 1000  # ranges that are remembered of a topic
RESTORED_GAP = 1 << 32  # offsets that a restored broker leaves out at least; what is damaged is never so many


class Retention(NamedTuple):
    """How long messages stay that nobody waits for; the first limit that is passed ends it."""

    age: int | None = None  # microseconds
    size: int | None = None  # bytes of payload
    messages: int | None = None
    rule: str = ""  # the filter that it stands for in the configuration


class Subscription:
    """A client's interest in a filter.

    A durable one is stored and holds what it matches. A live one is forgotten when its connection ends, unless it is
    persistent: then it is stored as well, but holds nothing while its client is away.

    A wildcard one has a cursor only on topics to which something was published since it subscribed, or its client came
    back: the first such message makes it, in its own commit. Of any other topic it is at the end.
    """

    __slots__ = (
        "away",
        "client",
        "cursors",
        "durable",
        "filter",
        "id",
        "on_move",
        "permits",
        "persistent",
        "start",
        "unvisited",
        "watchers",
        "wildcard",
    )

    def __init__(
        self, id_: int, client: str, filter_: str, start: int, *, durable: bool, persistent: bool
    ) -> None:
        self.id = id_
        self.start = start  # the position of the last message before it; below 0 while it is `beginning`
        self.client = client
        self.filter = filter_
        self.durable = durable
        self.persistent = persistent or durable
        self.away = False
        self.wildcard = is_filter(filter_)  # it may match many topics
        self.cursors: dict[Topic, Cursor] = {}
        self.unvisited: Iterator[Topic | None] | None = None  # topics it still has to begin with
        self.watchers: list[Callable[[Topic], None]] = []  # called when something new can be read
        self.on_move: tuple[Callable[[Topic, int], None], ...] = ()  # called when a cursor is moved elsewhere
        self.permits: Callable[[str], bool] | None = None  # of which topics it may get anything; None: of all

    def record(self) -> SubscriptionRecord:
        return SubscriptionRecord(self.id, self.client, self.filter, self.start, self.durable)

    @property
    def beginning(self) -> bool:
        """True until it has a cursor on each topic that held something when it subscribed."""
        return self.start < 0

    def floor(self, topic: "Topic") -> int:
        """All below is done."""
        cursor = self.cursors.get(topic)
        return topic.next if cursor is None else cursor.floor

    def above(self, topic: "Topic") -> list[Span]:
        """The ranges above the floor that are done."""
        cursor = self.cursors.get(topic)
        return [] if cursor is None else cursor.above

    def has_seen(self, topic: "Topic", offset: int) -> bool:
        """Whether its client can have been handed all before this offset; of a cursor that was moved, since then."""
        cursor = self.cursors.get(topic)
        return not isinstance(cursor, MovedCursor) or offset <= cursor.handed_out

    @property
    def last_done(self) -> int:
        """The last id that it has behind it: an offset, or for a wildcard a position."""
        if self.wildcard:
            return self.start
        (cursor,) = self.cursors.values()
        return cursor.floor - 1

    def covers(self, name: str) -> bool:
        matches = matcher(self.filter)(name) if self.wildcard else name == self.filter
        return matches and (self.permits is None or self.permits(name))


class Topic:
    """Offsets below `first` are collected; those from `visible` on are not durable yet."""

    __slots__ = (
        "cached",
        "damaged",
        "doubtful",
        "exists",
        "first",
        "id",
        "keeps_last",
        "low",
        "name",
        "next",
        "own_retention",
        "producers",
        "reserved",
        "retention",
        "skipped",
        "subscribers",
        "tail",
        "visible",
        "watched",
        "wildcard_generation",
    )

    def __init__(self, record: TopicRecord, retention: Retention | None) -> None:
        self.id, self.name, self.first, self.next, self.exists, self.keeps_last = record
        self.reserved = self.name.startswith(RESERVED)  # it is not for clients to publish to
        self.visible = self.next
        self.low = self.first  # no cursor is below
        self.retention = retention
        self.own_retention: Retention | None = None  # which then counts, whatever the configuration says
        # Who has a cursor here, and some that had one and are not taken out yet.
        self.subscribers: dict[Subscription, None] = {}
        self.wildcard_generation = (
            0  # that of the commit loop in which all wildcards that match had cursors here
        )
        self.watched: dict[Subscription, None] | None = (
            None  # of those the wildcards, and others with watchers
        )
        self.producers: dict[str, Producer] | None = None
        self.doubtful = False  # how far its producers have come is not known for certain
        self.skipped: tuple[tuple[int, int], ...] = ()  # offsets that are damaged, and passed over, in order
        self.damaged: tuple[tuple[int, int], ...] = ()  # offsets that somebody could not read since the start
        self.tail: list[Batch] | None = None  # the newest messages, where they are still in memory
        self.cached = False  # someone reads it, so its newest messages are kept there

    def record(self) -> TopicRecord:
        return TopicRecord(self.id, self.name, self.first, self.next, self.exists, self.keeps_last)

    @property
    def has_active_subscriber(self) -> bool:
        """True while someone waits for what comes."""
        for subscription in self.subscribers:  # noqa: SIM110 - asked for each topic of a commit: any() takes thrice
            if not subscription.away and self in subscription.cursors:
                return True
        return False

    @property
    def has_watcher(self) -> bool:
        """True while someone is notified of what comes."""
        for subscription in self.watched or ():  # noqa: SIM110 - as above
            if subscription.watchers:
                return True
        return False

    def cursors(self) -> Iterator[tuple[Subscription, Cursor]]:
        for subscription in self.subscribers:
            cursor = subscription.cursors.get(self)
            if cursor is not None:
                yield subscription, cursor

    @property
    def wanted(self) -> bool:
        """True while someone has a cursor on it, or it keeps messages of itself."""
        return (
            bool(self.subscribers)
            or self.keeps_last
            or self.own_retention is not None
            or (self.retention is not None and self.first < self.next)
        )

    def past_skipped(self, offset: int) -> int:
        """Where to go on reading."""
        for start, stop in self.skipped:
            if start <= offset < stop:
                offset = stop
        return offset

    def found_damaged(self, start: int, stop: int) -> None:
        """Somebody could not read these offsets."""
        found = tuple(union([*self.unskipped_damage(), (start, stop)]))
        if len(found) <= MAX_DAMAGED:
            self.damaged = found

    def unskipped_damage(self) -> list[tuple[int, int]]:
        """Offsets that somebody could not read, and that are neither skipped nor gone since."""
        kept = [(max(start, self.first), stop) for start, stop in self.damaged if stop > self.first]
        return without(kept, self.skipped)

    def cursor(self, offset: int, form: type[Cursor] = Cursor) -> Cursor:
        """A cursor of somebody who begins here. What is skipped is behind it."""
        offset = self.past_skipped(offset)
        return form(offset, [*merged([one for one in self.skipped if one[0] > offset])])

    def messages(self, start: int, stop: int) -> int:
        """How many of these offsets are not skipped."""
        skipped = [min(end, stop) - max(first, start) for first, end in self.skipped]
        return max(stop - start - sum([count for count in skipped if count > 0]), 0)

    @property
    def published(self) -> int:
        """How many messages it ever had."""
        gaps = [stop - start for start, stop in self.skipped if stop - start >= RESTORED_GAP]
        return max(self.visible - 1 - sum(gaps), 0)

    def back(self, end: int, count: int) -> int:
        """The offset from which on there are so many messages up to, not including, `end`."""
        start = end - count
        for first, stop in reversed(self.skipped):
            if first < end and stop > start:
                start -= min(stop, end) - first
        return start

    def add(self, subscription: Subscription, cursor: Cursor) -> None:
        subscription.cursors[self] = cursor
        self.subscribers[subscription] = None
        if subscription.wildcard or subscription.watchers:
            self.watch(subscription)

    def discard(self, subscription: Subscription) -> None:
        """The subscription has no cursor here any more."""
        subscription.cursors.pop(self, None)
        self.subscribers.pop(subscription, None)
        self.unwatch(subscription)

    def notify_watchers(self) -> None:
        """Something new can be read here."""
        for subscription in list(self.watched or ()):
            for watcher in list(subscription.watchers) if self in subscription.cursors else ():
                try:
                    watcher(self)
                except Exception:
                    log.exception("a reader could not be notified of what came; it may wait in vain")

    def watch(self, subscription: Subscription) -> None:
        if self.watched is None:
            self.watched = {}
        self.watched[subscription] = None

    def unwatch(self, subscription: Subscription) -> None:
        if self.watched is not None:
            self.watched.pop(subscription, None)
