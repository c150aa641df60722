"""Publishing: what is appended to topics, and what is recognised as a retry."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stafeta.broker.clock import TurnClock
from stafeta.broker.commits import CommitLoop
from stafeta.broker.counts import Counts
from stafeta.broker.producer import CounterProducer, repeated_of
from stafeta.broker.producers import Producers
from stafeta.broker.registry import Registry
from stafeta.broker.topic import Topic
from stafeta.errors import InvalidMessage, StafetaError
from stafeta.message import ROW, Batch, Kind
from stafeta.names import COUNTER_PREFIX, PIPELINE, RESERVED, reserved

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch


class Publisher:
    def __init__(
        self,
        commits: CommitLoop,
        registry: Registry,
        producers: Producers,
        clock: TurnClock,
        counts: Counts,
    ) -> None:
        self._commits = commits
        self._counts = counts
        self._registry = registry
        self._topics = registry.topics
        self._producers = producers
        self._now = clock.now

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
        if len(payload) > self._registry.limits.max_payload:
            raise self._too_long(len(payload))
        topic = self._topics.get(name)
        if topic is None or not topic.exists:
            topic = self._topic_for(name, create=create)
        if topic.reserved:
            raise reserved(name)
        if keep_last and not topic.keeps_last:
            self._registry.keep_last(topic)
        commits = self._commits
        pending = commits.pending
        pending.append_to(topic).append(
            (commits.position, self._now(), producer, source, kind, counter, payload)
        )
        pending.size += len(payload) + 64
        commits.position += 1
        offset = topic.next
        topic.next = offset + 1
        return offset

    def publish_own(self, name: str, payload: bytes) -> None:
        """Append one message to a topic of the broker's own, which is made where there is none."""
        topic = self._registry.topic_for(name, create=True)
        commits = self._commits
        row = (commits.position, self._now(), "", "", Kind.JSON, None, payload)
        commits.pending.append_to(topic).append(row)
        commits.pending.size += len(payload) + 64
        commits.position += 1
        topic.next += 1

    def publish_all(self, messages: Iterable[tuple[str, int, bytes, str]]) -> int:
        """Append messages that come together, each a topic's name, kind, payload and source; returns how many were left
        out because their topic does not exist. The caller has checked their sizes."""
        commits = self._commits
        pending, position, now = commits.pending, commits.position, self._now()
        first = position
        topics = self._topics
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
        return self._registry.topic_for(name, create=create)

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
        producers = self._producers
        topic = self._topic_for(name, create=False)
        state = producers.dedup_window(topic, producer)
        known = None if state is None else state.stored_at(counter, payload)
        if known is not None:
            self._counts.duplicates += 1
            return known
        producers.check(state, producer)
        offset = self.publish(name, payload, kind, source, producer, counter)
        producers.remember(topic, producer)
        state = state or CounterProducer()
        state.record(counter, offset, payload)
        producers.add(topic, producer, state)
        order, key = producers.dedup_order, (topic, producer)
        order[key] = order.pop(key, None)
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
        producers = self._producers
        topic = self._topic_for(name, create=create)
        producers.settle(topic, producer, sequence)
        state = producers.sequence(topic, producer)
        known = repeated_of(producers.last_sequence(topic, state, sequence), sequence, len(payloads))
        self.check_lengths(payloads)
        self._counts.duplicates += known
        if known < len(payloads):
            producers.check(state, producer)
            offset = topic.next
            for counter, payload in enumerate(payloads[known:], sequence + known):
                self.publish(name, payload, kind, source, producer, counter)
            state = producers.record_sequence(
                topic, producer, sequence + known, offset, len(payloads) - known
            )
        assert state is not None, "what was repeated was recorded"
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
        producers = self._producers
        topic = self._topics.get(name)
        if sequence is not None:
            producers.settle(topic, producer, sequence)
        state = producers.sequence(topic, producer)
        last = producers.last_sequence(topic, state, sequence or 0)
        known = 0 if sequence is None else repeated_of(last, sequence, batch.count)
        self._counts.duplicates += known
        if known == batch.count:
            return None if state is None or sequence is None else state.offset_of(sequence)
        if sequence is not None:
            producers.check(state, producer)
        self.check_writable(name)
        topic = self._registry.topic_for(name, create=True)
        commits = self._commits
        pending, offset, count = commits.pending, topic.next, batch.count - known
        counter = None if sequence is None else sequence + known
        fresh = batch.cut(batch.base + known, batch.end)
        placed = fresh.placed(offset, commits.position, self._now(), producer, source, counter)
        pending.append_whole(topic, placed, count)
        size = placed.size + ROW * count
        pending.size += size
        if placed.ahead:
            pending.ahead += size
        commits.position += count
        if counter is None or sequence is None:
            return offset
        return producers.record_sequence(topic, producer, counter, offset, count).offset_of(sequence)

    def next_offset(self, name: str) -> int:
        """The offset that the next message of a topic gets, which is made where there is none."""
        return self._topic_for(name, create=True).next

    # --- checks

    def check_append(self, name: str, producer: str, sequence: int | None) -> None:
        """Refuses what `append` would refuse. It only looks, and may be called from any thread."""
        self.check_writable(name)
        topic = self._topics.get(name)
        if sequence is not None:
            state = self._producers.sequence(topic, producer)
            repeated_of(self._producers.last_sequence(topic, state, sequence), sequence, 1)
        if topic is None or not topic.exists:
            self._registry.check_room()

    def check_writable(self, name: str) -> None:
        """Refuses a topic of the broker's own that is not the pipeline's."""
        if name.startswith(RESERVED) and not name.startswith(PIPELINE):
            raise reserved(name)

    def check_lengths(self, payloads: Iterable[bytes]) -> None:
        """Refuses messages of which one is too long."""
        longest = max(map(len, payloads), default=0)
        if longest > self._registry.limits.max_payload:
            raise self._too_long(longest)

    def check_longest(self, batch: Batch) -> None:
        """Refuses a batch with a message that is too long."""
        most = self._registry.limits.max_payload
        if batch.size > most and batch.longest > most:
            raise self._too_long(batch.longest)

    def _too_long(self, length: int) -> InvalidMessage:
        most = self._registry.limits.max_payload
        return InvalidMessage(
            f"A message is {length} bytes long; at most {most} are allowed (limits.max_payload)."
        )
