"""The broker: publishing and receiving, on top of the registry of topics and subscriptions.

1. Every verb that changes something takes effect in memory at once and is durable when `receipt()`, asked for after
   it, resolves. A verb that raises has changed nothing.
2. All of this runs on one event loop; only the store has threads.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop, Pending
from stafeta.broker.cursor import Cursor
from stafeta.broker.feed import Feed
from stafeta.broker.limits import Limits
from stafeta.broker.log import Log, in_order
from stafeta.broker.producer import REMEMBERED, Producer, repeated_of
from stafeta.broker.registry import Registry
from stafeta.broker.sessions import Sessions
from stafeta.broker.staging import Staging
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.errors import InvalidMessage, NoSuchOffset, StafetaError
from stafeta.message import COUNTER, PRODUCER, ROW, Batch, Kind
from stafeta.store.port import Group, Promotion, Snapshot, Store

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch

log = logging.getLogger("stafeta.broker")


class Broker(Registry):
    """Make one with `await Broker.open(store)`."""

    def __init__(
        self, store: Store, limits: Limits, retention: Callable[[str], Retention | None], tail: int
    ) -> None:
        super().__init__(CommitLoop(store, self._committed), Collector(self, store), limits, retention)
        self.sessions = Sessions()
        self.log = Log(store, tail)
        self.staging = Staging(self)
        self.visible_position = 1  # that of the first message that is not durable yet
        self._store = store
        self._time = 0
        self._position = 1  # after all that was replayed

    @classmethod
    async def open(
        cls,
        store: Store,
        limits: Limits | None = None,
        retention: Callable[[str], Retention | None] = lambda name: None,
        tail: int = 32 << 20,
    ) -> "Broker":
        """`tail` is how many bytes of the newest messages stay in memory."""
        broker = cls(store, limits or Limits(), retention, tail)
        snapshot = await store.open()
        try:
            broker._recover(snapshot)
        except BaseException:
            await store.close()
            raise
        return broker

    def _recover(self, snapshot: Snapshot) -> None:
        topics = self._restore(snapshot)
        for topic_id, name, state in snapshot.producers:
            self._producers(topics[topic_id])[name] = Producer.decode(state)
            self._take(name)
        for topic_id, batch in snapshot.recent:
            self._replay(topics[topic_id], batch)
        self.staging.recover(snapshot)
        self.commits.position = self.visible_position = max(snapshot.position, self._position)

    def _replay(self, topic: Topic, batch: Batch) -> None:
        """Learn again what a batch says of its producers."""
        self._position = max(self._position, batch.last_position + 1)
        if batch.counted is not None:
            self._replay_counted(topic, batch, batch.counted)
            return
        counters = batch.column(COUNTER)
        if counters.count(None) == batch.count:
            return
        columns = batch.column(PRODUCER), counters, batch.payloads
        for offset, (name, counter, payload) in enumerate(zip(*columns, strict=True), batch.base):
            if isinstance(name, str) and isinstance(counter, int):
                producer = self._producer(topic, name)
                if offset > producer.reached:
                    producer.record(counter, offset, (payload,))
                    self.commits.recovered(topic, name)

    def _replay_counted(self, topic: Topic, batch: Batch, counters: range) -> None:
        name = str(batch.constant(PRODUCER))
        producer = self._producer(topic, name)
        known = max(producer.reached + 1 - batch.base, 0)
        if known < batch.count:
            newest = batch.cut(batch.end - REMEMBERED, batch.end).payloads
            count = batch.count - known
            producer.record(counters[known], batch.base + known, newest[-count:], count)
            self.commits.recovered(topic, name)

    async def close(self) -> None:
        """Take nothing more, make durable what was taken, and let go of the store."""
        if self.closed:
            return
        self.closed = True
        await self.collector.stop()
        self.commits.checkpoint_wanted = True
        receipt = self.receipt()
        await asyncio.wait([receipt])
        if receipt.exception() is not None:
            log.error("the last commit failed: %s", receipt.exception())
        await self._store.close()

    # --- receipts

    def receipt(self) -> asyncio.Future[None]:
        """Resolves when all that was done so far is durable, or raises why it could not be. Do not cancel it."""
        return self.commits.receipt()

    @property
    def congested(self) -> bool:
        """True while so much waits to become durable that a door should read no further."""
        return self.commits.size > self.limits.pending

    def _committed(self, pending: Pending, group: Group) -> None:
        fresh: list[tuple[Topic, Batch]] = []
        watched: list[Topic] = []
        dirty = self.collector.dirty
        for (topic, base, _), append in zip(pending.appends, group.appends, strict=True):
            if isinstance(append, Promotion):
                topic.visible = base + append.rows
                topic.tail = None  # what is in memory must be without gaps
                fresh = [one for one in fresh if one[0] is not topic]
            else:
                topic.visible = append.batch.end
                fresh.append((topic, append.batch))
            if topic.watched:
                watched.append(topic)
            elif not topic.attended:
                dirty.add(topic)
            if topic.retention is not None:
                dirty.add(topic)
        self.visible_position = group.position
        self.log.add(fresh)
        for topic in watched:
            for subscription in list(topic.watched or ()):
                for watcher in list(subscription.watchers):
                    watcher(topic)

    def now(self) -> int:
        """Microseconds in UTC, never going back."""
        self._time = max(self._time, time.time_ns() // 1000)
        return self._time

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
        """Append one message; returns its offset. With `keep_last` the topic keeps its last message from now on, for
        those who come later."""
        if len(payload) > self.limits.payload:
            raise self._too_long(len(payload))
        topic = self.topics.get(name)
        if topic is None or not topic.exists:
            topic = self.topic_for(name, create=create)
        if keep_last and not topic.keeps_last:
            self.keep_last(topic)
        commits = self.commits
        pending = commits.pending
        pending.append_to(topic).append(
            (commits.position, self.now(), producer, source, kind, counter, payload)
        )
        pending.size += len(payload) + 64
        commits.position += 1
        offset = topic.next
        topic.next = offset + 1
        return offset

    def publish_all(self, messages: Iterable[tuple[str, int, bytes, str]]) -> int:
        """Append messages that come together, each a topic's name, kind, payload and source; returns how many were left
        out because their topic does not exist. The caller has checked their sizes."""
        commits = self.commits
        pending, position, now = commits.pending, commits.position, self.now()
        first = position
        topics = self.topics
        missing: set[str] = set()
        left_out = size = 0
        for name, kind, payload, source in messages:
            topic = topics.get(name)
            if topic is None or not topic.exists:
                if name not in missing:
                    try:
                        topic = self.topic_for(name, create=False)
                    except StafetaError:
                        missing.add(name)
                if topic is None or not topic.exists:
                    left_out += 1
                    continue
            pending.append_to(topic).append((position, now, "", source, kind, None, payload))
            topic.next += 1
            position += 1
            size += len(payload)
        commits.position = position
        pending.size += size + 64 * (position - first)
        return left_out

    def publish_once(
        self,
        name: str,
        payload: bytes,
        producer: str,
        counter: int,
        kind: int = Kind.STRING,
        source: str = "",
    ) -> int:
        """Append one message, unless it is one of the producer's last few, sent again; returns its offset."""
        topic = self.topic_for(name, create=False)
        state = self._producer(topic, producer)
        known = state.stored_at(counter, payload)
        if known is not None:
            return known
        offset = self.publish(name, payload, kind, source, producer, counter)
        self.commits.pending.remember(topic, producer, state)
        state.record(counter, offset, (payload,))
        return offset

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
        """Append what is new of messages that the producer numbers from `sequence` on, without gaps; returns the first
        and the last offset."""
        topic = self.topic_for(name, create=create)
        state = self._producer(topic, producer)
        known = state.repeated(sequence, len(payloads))
        longest = max(map(len, payloads), default=0)
        if longest > self.limits.payload:
            raise self._too_long(longest)
        if known < len(payloads):
            offset = topic.next
            for counter, payload in enumerate(payloads[known:], sequence + known):
                self.publish(name, payload, kind, source, producer, counter)
            self.commits.pending.remember(topic, producer, state)
            state.record(sequence + known, offset, payloads[known:])
        first = state.offset_of(sequence)
        last = state.offset_of(sequence + len(payloads) - 1)
        return first or 0, last or 0

    def append(
        self,
        name: str,
        batch: "ColumnBatch",
        source: str = "",
        producer: str = "",
        sequence: int | None = None,
    ) -> int | None:
        """Append messages that came as one batch, or what is new of them where the producer numbers them from
        `sequence` on; returns the first offset, if it is known. The topic is made where there is none. The caller has
        used `check_longest`."""
        state = self._known(name, producer)
        last = 0 if state is None else state.last
        known = 0 if sequence is None else repeated_of(last, sequence, batch.count)
        if known == batch.count:
            return None if state is None or sequence is None else state.offset_of(sequence)
        topic = self.topic_for(name, create=True)
        commits = self.commits
        pending, offset, count = commits.pending, topic.next, batch.count - known
        counter = None if sequence is None else sequence + known
        fresh = batch.cut(batch.base + known, batch.end)
        placed = fresh.placed(offset, commits.position, self.now(), producer, source, counter)
        pending.append_whole(topic, placed, count)
        pending.size += placed.size + ROW * count
        commits.position += count
        if counter is None or sequence is None:
            return offset
        state = self._producer(topic, producer)
        pending.remember(topic, producer, state)
        state.record(counter, offset, (), count)
        return state.offset_of(sequence)

    def check_append(self, name: str, producer: str, sequence: int | None) -> None:
        """Refuses what `append` would refuse. It only looks, and may be called from any thread."""
        if sequence is not None:
            repeated_of(self.next_sequence(name, producer) - 1, sequence, 1)
        topic = self.topics.get(name)
        if topic is None or not topic.exists:
            self.check_room(name)

    def check_longest(self, batch: Batch) -> None:
        """Refuses a batch with a message that is too long."""
        if batch.size > self.limits.payload and batch.longest > self.limits.payload:
            raise self._too_long(batch.longest)

    def _too_long(self, length: int) -> InvalidMessage:
        return InvalidMessage(
            f"A message is {length} bytes long; at most {self.limits.payload} are allowed (limits.max_payload)."
        )

    def next_sequence(self, name: str, producer: str) -> int:
        """The number that the producer's next message on this topic has."""
        state = self._known(name, producer)
        return 1 if state is None else state.last + 1

    def _known(self, name: str, producer: str) -> Producer | None:
        topic = self.topics.get(name)
        return None if topic is None else (topic.producers or {}).get(producer)

    def _producer(self, topic: Topic, name: str) -> Producer:
        producers = self._producers(topic)
        found = producers.get(name)
        if found is None:
            found = producers[name] = Producer()
            self._take(name)
        return found

    def _producers(self, topic: Topic) -> dict[str, Producer]:
        if topic.producers is None:
            topic.producers = {}
        return topic.producers

    # --- receiving

    async def fetch(self, subscription: Subscription, topics: Iterable[Topic], size: int) -> list[Batch]:
        """What the subscription has not acknowledged on these topics, in order, up to about `size` bytes."""
        found: list[tuple[list[Batch], bool]] = []
        # As of one instant: else what is committed while one topic is read would come before what it came after.
        ends = [(topic, topic.visible) for topic in topics]
        for topic, visible in ends:
            cursor = topic.cursors.get(subscription)
            if cursor is None or cursor.floor >= visible:
                continue
            batches: list[Batch] = []
            left = size
            more = False
            for start, stop in cursor.pending(visible):
                if left <= 0:
                    more = True
                    break
                read = await self.log.read(topic, start, stop, left)
                batches += read
                left -= sum(batch.size for batch in read)
                more = bool(read) and read[-1].end < stop
            found.append((batches, more))
        return in_order(found)

    async def read(
        self, topic: Topic, start: int, size: int, stop: int | None = None, overhead: int = 0
    ) -> list[Batch]:
        """Whatever the topic still holds from this offset on, acknowledged or not."""
        return await self.log.read(topic, start, topic.visible if stop is None else stop, size, overhead)

    async def locate(self, topic: Topic, time: int) -> int:
        """The offset of the first message that is not older than `time` (microseconds)."""
        return min(max(await self._store.locate(topic.id, time, topic.first), topic.first), topic.visible)

    async def measure(self, topic: Topic, start: int) -> int:
        """Bytes of payload from this offset on, or close to it."""
        return await self._store.measure(topic.id, max(start, topic.first))

    def ack(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        """The subscriber has done with the offsets from `start` up to, not including, `stop`."""
        cursor = topic.cursors.get(subscription)
        if cursor is None:
            return
        if stop > topic.visible:
            raise NoSuchOffset(
                f"Topic {topic.name!r} has no message {stop - 1} yet; its last is {topic.visible - 1}."
            )
        floor, above = cursor.floor, cursor.above
        if not cursor.ack(start, stop):
            return
        if subscription.durable:
            self.commits.pending.moved(subscription, topic, cursor, Cursor(floor, above))
        if floor <= topic.low:
            self.collector.dirty.add(topic)

    def rewind(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        """Let a live subscription begin at this offset of a topic, or at what the topic still holds after it."""
        topic.cursors[subscription].floor = min(max(offset, topic.first), topic.next)

    def feed(self, client: str, news: Callable[[], None] = lambda: None, *, patient: bool = False) -> Feed:
        """What a connection that is pushed its messages reads from."""
        return Feed(self, client, news, patient=patient)
