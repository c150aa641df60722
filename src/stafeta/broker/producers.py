"""The producers that are remembered, on all topics, and how far each has come."""

import logging

from stafeta.broker.commits import CommitLoop
from stafeta.broker.producer import CounterProducer, Producer, SequenceProducer
from stafeta.broker.registry import Registry
from stafeta.broker.topic import Topic
from stafeta.errors import LimitReached
from stafeta.message import COUNTER, PRODUCER, Batch
from stafeta.names import COUNTER_PREFIX, check_producer, owner_of

log = logging.getLogger("stafeta.broker")


class Producers:
    def __init__(self, commits: CommitLoop, registry: Registry) -> None:
        self._commits = commits
        self._registry = registry
        # Those that have a deduplication window instead of a sequence, the longest silent first.
        self.dedup_order: dict[tuple[Topic, str], None] = {}

    def sequence(self, topic: Topic | None, name: str) -> SequenceProducer | None:
        """The state of a producer that counts without gaps."""
        known = None if topic is None or topic.producers is None else topic.producers.get(name)
        assert not isinstance(known, CounterProducer)
        return known

    def dedup_window(self, topic: Topic, name: str) -> CounterProducer | None:
        """The state of a producer that draws its counters."""
        known = None if topic.producers is None else topic.producers.get(name)
        assert not isinstance(known, SequenceProducer)
        return known

    def last_sequence(self, topic: Topic | None, state: SequenceProducer | None, sequence: int) -> int:
        """The last number that a producer has used. Where that is damaged, or was used after the backup that was
        restored, it is the one before what it says now."""
        last = 0 if state is None else state.last
        doubtful = (topic is not None and topic.doubtful) or (state is not None and state.unsure)
        return max(last, sequence - 1) if doubtful else last

    def settle(self, topic: Topic | None, name: str, sequence: int) -> None:
        """Call with the first number of what has come: from then on it is known how far its producer is. Also where
        this is refused: what comes after it in a pipeline is to be refused, too."""
        state = self.sequence(topic, name)
        if state is None or not state.unsure or topic is None:
            return
        state.unsure = False
        if sequence > state.last + 1:
            log.warning(
                "producer %r goes on with %d on %r: its messages %d to %d came after the backup that was restored, and "
                "are lost",
                name,
                sequence,
                topic.name,
                state.last + 1,
                sequence - 1,
            )
            state.last = sequence - 1

    def restored(self, offset: int) -> None:
        """A backup was restored, and topics went on here: who has not written since may have written before."""
        for topic in self._registry.topics.values():
            for state in (topic.producers or {}).values():
                if isinstance(state, SequenceProducer):
                    state.unsure = state.reached < offset

    def next_sequence(self, name: str, producer: str) -> int:
        """The number that the producer's next message on this topic has."""
        state = self.sequence(self._registry.topics.get(name), producer)
        return 1 if state is None else state.last + 1

    def record_sequence(
        self, topic: Topic, name: str, sequence: int, offset: int, count: int
    ) -> SequenceProducer:
        """Messages with consecutive numbers are stored at consecutive offsets."""
        self.remember(topic, name)
        state = self.sequence(topic, name) or SequenceProducer()
        state.record(sequence, offset, count)
        self.add(topic, name, state)
        return state

    def check(self, state: Producer | None, name: str) -> None:
        """Refuses one that is new where there are too many, or its name is not allowed. Of those that draw counters
        the longest silent is forgotten instead: a retry of its last message would have come long ago."""
        if state is not None:
            return
        check_producer(name)
        registry = self._registry
        while registry.producers >= registry.limits.max_producers and self.dedup_order:
            topic, oldest = next(iter(self.dedup_order))
            del self.dedup_order[topic, oldest]
            if topic.producers is not None and topic.producers.pop(oldest, None) is not None:
                registry.producers -= 1
                self._commits.forget(topic, oldest)
        if registry.producers >= registry.limits.max_producers:
            raise LimitReached(
                f"{registry.producers} producers are remembered, as many as limits.max_producers allows."
            )

    def remember(self, topic: Topic, name: str) -> None:
        """Call before a producer's state changes, so that the change can be undone."""
        pending = self._commits.pending
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
                self.dedup_order.pop((topic, name), None)
                self._registry.producers -= 1

        pending.undo.append(undo)

    def add(self, topic: Topic, name: str, state: Producer) -> None:
        """Remember one that may be new."""
        if topic.producers is None:
            topic.producers = {}
        if name not in topic.producers:
            topic.producers[name] = state
            self._registry.producers += 1
            if isinstance(state, CounterProducer):
                self.dedup_order[topic, name] = None
            self._registry.reserve_client(owner_of(name.removeprefix(COUNTER_PREFIX))[1])

    # --- at the start

    def replay(self, topic: Topic, batch: Batch) -> None:
        """Learn again what a batch says of its producers."""
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
            state = self.dedup_window(topic, name) or CounterProducer()
            if offset > state.reached:
                state.record(counter, offset, payload)
                self.add(topic, name, state)
                self._commits.recovered(topic, name)

    def _replay_sequence(self, topic: Topic, name: str, sequence: int, base: int, count: int) -> None:
        state = self.sequence(topic, name) or SequenceProducer()
        known = max(state.reached + 1 - base, 0)
        if known < count:
            state.record(sequence + known, base + known, count - known)
            self.add(topic, name, state)
            self._commits.recovered(topic, name)
