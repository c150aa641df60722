"""The broker: publishing and receiving, on top of the registry of topics and subscriptions.

1. Every verb that changes something takes effect in memory at once and is durable when the future of `commit()`,
   called after it, resolves. A verb that raises has changed nothing.
2. All of this runs on one event loop; only the store has threads.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stafeta.broker.clock import Clock
from stafeta.broker.collector import Collector
from stafeta.broker.commits import CommitLoop, Pending, Share
from stafeta.broker.consumer import Consumer
from stafeta.broker.cursor import Cursor, Span
from stafeta.broker.limits import Limits
from stafeta.broker.log import Log, in_order
from stafeta.broker.portions import in_portions
from stafeta.broker.producer import (
    CounterProducer,
    Producer,
    SequenceProducer,
    decode,
    repeated_of,
)
from stafeta.broker.registry import Registry
from stafeta.broker.runs import Runs
from stafeta.broker.sessions import Sessions
from stafeta.broker.staging import Staging
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.errors import (
    InvalidMessage,
    InvalidRequest,
    LimitReached,
    NoSuchOffset,
    StafetaError,
    StoreDamaged,
)
from stafeta.message import COUNTER, PRODUCER, ROW, Batch, Kind
from stafeta.names import COUNTER_PREFIX, PIPELINE, RESERVED, check_producer, reserved
from stafeta.store.port import Group, Promotion, Snapshot, Store

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch

log = logging.getLogger("stafeta.broker")

FEW = 4 << 10  # bytes read at least of each of several topics
AROUND = 1024  # messages read together, where some of them are acknowledged
PIECE = 64  # bytes that a batch counts for beside its messages, however small it is
MANY = 1000  # messages that are put in order at once


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
        self._dedup_order: dict[
            tuple[Topic, str], None
        ] = {}  # those that draw counters, the longest silent first
        self._clock = Clock()
        self._loop = asyncio.get_running_loop()
        self._turn, self._now = -1.0, 0
        self._position = 1  # after all that was replayed
        self.runs = Runs((), 1)
        self.started = time.monotonic()
        self.began = 1  # the position at which this run began

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
            self._add_producer(topics[topic_id], name, decode(name, state))
        for topic_id, batch in snapshot.recent:
            self._replay(topics[topic_id], batch)
        for topic_id in snapshot.doubtful:
            topics[topic_id].doubtful = True
        self.staging.recover(snapshot)
        position = max(snapshot.position, self._position) + snapshot.lost_positions
        self.visible_position = self.began = position
        self.commits.begin_at(position)
        self.runs = Runs(snapshot.runs, position)
        self.commits.run = self.runs.current

    def _replay(self, topic: Topic, batch: Batch) -> None:
        """Learn again what a batch says of its producers."""
        self._position = max(self._position, batch.last_position + 1)
        counted, name = batch.counted, batch.constant(PRODUCER)
        if counted is not None and isinstance(name, str) and not name.startswith(COUNTER_PREFIX):
            self._replay_sequence(topic, name, counted.start, batch.base, batch.count)
            return
        counters = batch.column(COUNTER)
        if counters.count(None) == batch.count:
            return
        columns = batch.column(PRODUCER), counters, batch.payloads
        for offset, (name, counter, payload) in enumerate(zip(*columns, strict=True), batch.base):
            if not isinstance(name, str) or not isinstance(counter, int):
                continue
            if not name.startswith(COUNTER_PREFIX):
                self._replay_sequence(topic, name, counter, offset, 1)
                continue
            dedup_window = self._counter_producer(topic, name) or CounterProducer()
            if offset > dedup_window.reached:
                dedup_window.record(counter, offset, payload)
                self._add_producer(topic, name, dedup_window)
                self.commits.recovered(topic, name)

    def _replay_sequence(self, topic: Topic, name: str, sequence: int, base: int, count: int) -> None:
        producer = self._sequence_producer(topic, name) or SequenceProducer()
        known = max(producer.reached + 1 - base, 0)
        if known < count:
            producer.record(sequence + known, base + known, count - known)
            self._add_producer(topic, name, producer)
            self.commits.recovered(topic, name)

    async def close(self) -> None:
        """Take nothing more, make durable what was taken, and let go of the store."""
        if self.closed:
            return
        self.closed = True
        await self.collector.stop()
        self.commits.checkpoint_wanted = True
        commit = self.commit()
        await asyncio.wait([commit])
        if commit.exception() is not None:
            log.error("the last commit failed: %s", commit.exception())
        await self._store.close()

    # --- commits

    def commit(self) -> asyncio.Future[None]:
        """Resolves when all that was done so far is durable, or raises why it could not be. Do not cancel it."""
        return self.commits.commit()

    def share(self) -> Share:
        """For a door to count what it adds to a group."""
        return Share(self.commits)

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
            if topic.watched and topic.has_watcher:
                watched.append(topic)
            elif not topic.has_active_subscriber:
                dirty.add(topic)
            if topic.retention is not None:
                dirty.add(topic)
        self.visible_position = group.position
        self.log.add(fresh)
        for topic in watched:
            self._notify_watchers(topic)

    def _notify_watchers(self, topic: Topic) -> None:
        for subscription in list(topic.watched or ()):
            for watcher in list(subscription.watchers) if topic in subscription.cursors else ():
                try:
                    watcher(topic)
                except Exception:
                    log.exception("a reader could not be notified of what came; it may wait in vain")

    def now(self) -> int:
        """Microseconds in UTC. What comes in one turn of the loop has one time, where the loop tells its turns apart by
        theirs."""
        turn = self._loop.time()
        if turn != self._turn:
            self._turn, self._now = turn, self._clock.now()
        return self._now

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
            topic = self._topic_for(name, create=create)
        if topic.reserved:
            raise reserved(name)
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
                        topic = self._topic_for(name, create=False)
                    except StafetaError:
                        missing.add(name)
                if topic is None or not topic.exists:
                    left_out += 1
                    continue
            if topic.reserved:
                left_out += 1
                continue
            pending.append_to(topic).append((position, now, "", source, kind, None, payload))
            topic.next += 1
            position += 1
            size += len(payload)
        commits.position = position
        pending.size += size + 64 * (position - first)
        return left_out

    def _topic_for(self, name: str, *, create: bool) -> Topic:
        if name.startswith(RESERVED):
            raise reserved(name)
        return self.topic_for(name, create=create)

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
        producer = COUNTER_PREFIX + producer
        topic = self._topic_for(name, create=False)
        state = self._counter_producer(topic, producer)
        known = None if state is None else state.stored_at(counter, payload)
        if known is not None:
            return known
        self._check_producer(state, producer)
        offset = self.publish(name, payload, kind, source, producer, counter)
        self._remember(topic, producer)
        state = state or CounterProducer()
        state.record(counter, offset, payload)
        self._add_producer(topic, producer, state)
        self._dedup_order[topic, producer] = self._dedup_order.pop((topic, producer), None)
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
        topic = self._topic_for(name, create=create)
        state = self._sequence_producer(topic, producer)
        known = repeated_of(self._last_sequence(topic, state, sequence), sequence, len(payloads))
        self.check_lengths(payloads)
        if known < len(payloads):
            self._check_producer(state, producer)
            offset = topic.next
            for counter, payload in enumerate(payloads[known:], sequence + known):
                self.publish(name, payload, kind, source, producer, counter)
            state = self._record_sequence(topic, producer, sequence + known, offset, len(payloads) - known)
        assert state is not None, "what was repeated was recorded"
        first = state.offset_of(sequence)
        last = state.offset_of(sequence + len(payloads) - 1)
        return first or 0, last or 0

    def _record_sequence(
        self, topic: Topic, producer: str, sequence: int, offset: int, count: int
    ) -> SequenceProducer:
        self._remember(topic, producer)
        state = self._sequence_producer(topic, producer) or SequenceProducer()
        state.record(sequence, offset, count)
        self._add_producer(topic, producer, state)
        return state

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
        topic = self.topics.get(name)
        state = self._sequence_producer(topic, producer)
        last = self._last_sequence(topic, state, sequence or 0)
        known = 0 if sequence is None else repeated_of(last, sequence, batch.count)
        if known == batch.count:
            return None if state is None or sequence is None else state.offset_of(sequence)
        if sequence is not None:
            self._check_producer(state, producer)
        self.check_writable(name)
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
        return self._record_sequence(topic, producer, counter, offset, count).offset_of(sequence)

    def check_append(self, name: str, producer: str, sequence: int | None) -> None:
        """Refuses what `append` would refuse. It only looks, and may be called from any thread."""
        self.check_writable(name)
        if sequence is not None:
            topic = self.topics.get(name)
            repeated_of(
                self._last_sequence(topic, self._sequence_producer(topic, producer), sequence), sequence, 1
            )
        topic = self.topics.get(name)
        if topic is None or not topic.exists:
            self.check_room(name)

    def check_writable(self, name: str) -> None:
        """Refuses a topic of the broker's own that is not the pipeline's."""
        if name.startswith(RESERVED) and not name.startswith(PIPELINE):
            raise reserved(name)

    def check_lengths(self, payloads: Iterable[bytes]) -> None:
        """Refuses messages of which one is too long."""
        longest = max(map(len, payloads), default=0)
        if longest > self.limits.payload:
            raise self._too_long(longest)

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
        state = self._sequence_producer(self.topics.get(name), producer)
        return 1 if state is None else state.last + 1

    # --- producers

    def _sequence_producer(self, topic: Topic | None, name: str) -> SequenceProducer | None:
        known = None if topic is None or topic.producers is None else topic.producers.get(name)
        assert not isinstance(known, CounterProducer)
        return known

    def _last_sequence(self, topic: Topic | None, state: SequenceProducer | None, sequence: int) -> int:
        """The last number that a producer has used. Where that is damaged, it is the one before what it says now."""
        last = 0 if state is None else state.last
        return max(last, sequence - 1) if topic is not None and topic.doubtful else last

    def _counter_producer(self, topic: Topic, name: str) -> CounterProducer | None:
        known = None if topic.producers is None else topic.producers.get(name)
        assert not isinstance(known, SequenceProducer)
        return known

    def _check_producer(self, state: Producer | None, name: str) -> None:
        """Refuses one that is new where there are too many, or its name is not allowed. Of those that draw counters
        the longest silent is forgotten instead: a retry of its last message would have come long ago."""
        if state is not None:
            return
        check_producer(name)
        while self._producers >= self.limits.producers and self._dedup_order:
            topic, oldest = next(iter(self._dedup_order))
            del self._dedup_order[topic, oldest]
            if topic.producers is not None and topic.producers.pop(oldest, None) is not None:
                self._producers -= 1
                self.commits.forget(topic, oldest)
        if self._producers >= self.limits.producers:
            raise LimitReached(
                f"{self._producers} producers are remembered, as many as limits.max_producers allows."
            )

    def _remember(self, topic: Topic, name: str) -> None:
        """Call before a producer's state changes, so that the change can be undone."""
        pending = self.commits.pending
        if (topic, name) in pending.producers:
            return
        pending.producers.add((topic, name))
        known = (topic.producers or {}).get(name)
        before = None if known is None else known.copy()

        def undo() -> None:
            assert topic.producers is not None
            if name not in topic.producers:
                return  # it was forgotten meanwhile
            if before is not None:
                topic.producers[name] = before
            else:
                del topic.producers[name]
                self._dedup_order.pop((topic, name), None)
                self._producers -= 1

        pending.undo.append(undo)

    def _add_producer(self, topic: Topic, name: str, state: Producer) -> None:
        if topic.producers is None:
            topic.producers = {}
        if name not in topic.producers:
            topic.producers[name] = state
            self._producers += 1
            if isinstance(state, CounterProducer):
                self._dedup_order[topic, name] = None
            self._take(name.removeprefix(COUNTER_PREFIX))

    # --- receiving

    async def fetch(
        self, subscription: Subscription, topics: Iterable[Topic], size: int, *, in_turn: bool = False
    ) -> list[Batch]:
        """What the subscription has not acknowledged on these topics, in order, up to about `size` bytes.

        Whoever says how far he is by one position gets them `in_turn`: of other topics nothing that comes after what
        waits behind damage, since he would acknowledge that unseen."""
        # As of one instant: else what is committed while one topic is read would come before what it came after.
        limit = self.visible_position
        ends: list[tuple[Topic, Cursor, int]] = []
        async for topic in in_portions(topics):
            cursor = subscription.cursors.get(topic)
            if cursor is not None and cursor.floor < topic.visible:
                ends.append((topic, cursor, topic.visible))
        share = size if len(ends) <= 1 else max(size // len(ends), FEW)
        found: list[tuple[list[Batch], bool]] = []
        damaged: StoreDamaged | None = None
        for topic, cursor, visible in ends:
            try:
                found.append(await self._pending(topic, cursor, visible, share))
            except StoreDamaged as error:
                damaged = damaged or error
                if in_turn:
                    limit = min(limit, await self._next_position(topic, error.stop))
            await asyncio.sleep(0)  # what is in memory is read without waiting
        if sum([batch.count for batches, _ in found for batch in batches]) > MANY and len(found) > 1:
            batches = await asyncio.to_thread(in_order, found, size, limit)
        else:
            batches = in_order(found, size, limit)
        if damaged is not None and not batches:
            raise damaged  # else what is whole comes first
        return batches

    async def _next_position(self, topic: Topic, offset: int) -> int:
        """The position of the first message from this offset on that can be read; that of the next to come, where none
        can."""
        batch = await self._next_readable(topic, offset)
        return self.visible_position if batch is None else batch.positions[0]

    async def _next_readable(self, topic: Topic, offset: int) -> Batch | None:
        """The first messages from this offset on that are not damaged."""
        while offset < topic.visible:
            try:
                batches = await self.log.read(topic, offset, topic.visible, 1)
            except StoreDamaged as error:
                offset = max(error.stop, offset + 1)
                continue
            return batches[0] if batches else None
        return None

    async def _pending(
        self, topic: Topic, cursor: Cursor, visible: int, size: int
    ) -> tuple[list[Batch], bool]:
        """What a cursor has before it, and whether there is more. Gaps between what was acknowledged may be many and
        small: what lies between them is read with them, and left out."""
        batches: list[Batch] = []
        span = cursor.next_pending(topic.first, visible)
        while span is not None and size > 0:
            start, stop = span
            stop = max(stop, min(start + AROUND, visible))
            try:
                read = await self.log.read(topic, start, stop, size)
            except StoreDamaged:
                if batches:
                    return batches, True
                raise
            reached = read[-1].end if read else stop
            for batch in read:
                for a, b in cursor.pending(batch.end, batch.base):
                    batches.append(batch.cut(a, b))
                    size -= batches[-1].size + PIECE
            span = cursor.next_pending(reached, visible)
            await asyncio.sleep(0)
        return batches, span is not None

    async def read(
        self, topic: Topic, start: int, size: int, stop: int | None = None, overhead: int = 0
    ) -> list[Batch]:
        """Whatever the topic still holds from this offset on, acknowledged or not."""
        return await self.log.read(topic, start, topic.visible if stop is None else stop, size, overhead)

    async def locate(self, topic: Topic, time: int) -> int:
        """The offset of the first message that is not older than `time` (microseconds)."""
        return min(max(await self._store.locate(topic.id, time, topic.first), topic.first), topic.visible)

    async def offset_at(self, topic: Topic, position: int, start: int) -> int:
        """The first offset from `start` on whose message has this position or a later one; the end, where none has."""
        low, high, step = max(start, topic.first), topic.visible, 1
        while low + step <= high:  # further and further, since it is mostly near
            if not await self._comes_before(topic, low + step - 1, position):
                high = low + step - 1
                break
            low, step = low + step, step * 2
        while low < high:
            middle = (low + high) // 2
            if await self._comes_before(topic, middle, position):
                low = middle + 1
            else:
                high = middle
        return low

    async def _comes_before(self, topic: Topic, offset: int, position: int) -> bool:
        try:
            batches = await self.log.read(topic, offset, offset + 1, 1)
        except StoreDamaged as error:  # where the next does that can be read, this does
            return await self._next_position(topic, error.stop) < position
        return not batches or batches[0].positions[0] < position  # what is collected came before

    async def verify(self, staged: Sequence[int]) -> None:
        """Raises StoreDamaged where a staged batch is not as it was written."""
        await self._store.verify(staged)

    async def measure(self, topic: Topic, start: int) -> int:
        """Bytes of payload from this offset on, or close to it."""
        return await self._store.measure(topic.id, max(start, topic.first))

    def ack(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        """The subscriber has done with the offsets from `start` up to, not including, `stop`."""
        self.ack_all(subscription, topic, ((start, stop),))

    def ack_surely(self, subscription: Subscription, topic: Topic, start: int, stop: int) -> None:
        """The same, and again where it could not be stored, since there is nobody to tell."""
        try:
            self.ack(subscription, topic, start, stop)
        except StafetaError as error:
            log.error("what client %r has got is not acknowledged: %s", subscription.client, error)
            return
        if subscription.durable:
            again = partial(self.ack_surely, subscription, topic, start, stop)
            self.commits.pending.again.append(again)

    def ack_all(self, subscription: Subscription, topic: Topic, spans: Sequence[Span]) -> None:
        """The subscriber has done with these, which are in ascending order."""
        cursor = subscription.cursors.get(topic)
        if cursor is None or not spans:
            return
        self.check_offset(topic, spans[-1][1] - 1)
        floor, gaps = cursor.floor, cursor.gaps
        moves = cursor.ack(spans)
        if not moves:
            return
        if cursor.gaps > max(self.limits.gaps, gaps):
            for move in reversed(moves):
                cursor.take_back(move)
            raise LimitReached(
                f"Client {subscription.client!r} has left out messages of {topic.name!r} at {self.limits.gaps} places, "
                f"as many as limits.max_gaps allows. Acknowledge those from {cursor.floor} on first."
            )
        if subscription.durable:
            self.commits.pending.moved(subscription, topic, cursor, moves)
        if floor <= topic.low:
            self.collector.dirty.add(topic)

    async def skip(self, name: str, start: int, stop: int) -> None:
        """Let everybody pass over messages that are damaged; those that can be read are refused."""
        topic = self.topic(name)
        if not topic.first <= start < stop <= topic.visible:
            raise NoSuchOffset(
                f"The messages {start} to {stop - 1} are not within {name!r}, which has {topic.first} to "
                f"{topic.visible - 1}."
            )
        readable = await self._next_readable(topic, start)
        if readable is not None and readable.base < stop:
            raise InvalidRequest(
                f"Message {readable.base} of {name!r} can be read: acknowledge it instead. Only what is damaged is "
                "skipped."
            )
        pending, before = self.commits.pending, topic.skipped
        # One range begins at an offset: the longest.
        longest = max([stop, *[end for first, end in before if first == start]])
        pending.group.skipped.append((topic.id, start, longest))
        pending.undo.append(lambda: setattr(topic, "skipped", before))
        topic.skipped = tuple(sorted([*(one for one in before if one[0] != start), (start, longest)]))
        # However many gaps that makes: it is not their choice.
        for subscription, cursor in topic.cursors():
            if (moves := cursor.ack(((start, stop),))) and subscription.durable:
                pending.moved(subscription, topic, cursor, moves)
        self.collector.dirty.add(topic)
        await asyncio.shield(self.commit())
        log.warning("messages %d to %d of %r are damaged, and skipped", start, stop - 1, name)
        self._notify_watchers(topic)

    def check_offset(self, topic: Topic, offset: int) -> None:
        """Refuses an offset that the topic has not reached."""
        if offset >= topic.visible:
            raise NoSuchOffset(
                f"Topic {topic.name!r} has no message {offset} yet; its last is {topic.visible - 1}."
            )

    def rewind(self, subscription: Subscription, topic: Topic, offset: int) -> None:
        """Let a live subscription begin at this offset of a topic, or at what the topic still holds after it."""
        offset = min(max(offset, topic.first), topic.next)
        cursor = subscription.cursors.get(topic)
        if cursor is not None:
            cursor.floor = offset
        elif offset < topic.next:
            topic.add(subscription, Cursor(offset))

    def consumer(
        self, client: str, on_ready: Callable[[], None] = lambda: None, *, unbounded_lag: bool = False
    ) -> Consumer:
        """What a connection that is pushed its messages reads from."""
        return Consumer(self, client, on_ready, unbounded_lag=unbounded_lag)
