"""Random lives of a broker, held against the model: they must not differ, on either store."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stafeta.broker import Broker, portions
from stafeta.columns import ColumnBatch
from stafeta.doors.flight.decode_batches import take
from stafeta.errors import NoSuchTopic, NotStaged, NotSubscribed, OutOfSequence, StoreFull, TakenOver
from stafeta.store.sqlite import segments
from tests.broker.model import Model
from tests.broker.stores import FailingMemory, FailingSqlite, shrink
from tests.soundness import assert_sound

T = TypeVar("T")

NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "$s/x"])
FILTERS = st.sampled_from(["a", "b", "a/x", "a/y", "#", "a/+", "a/#", "+", "*/x", "$s/#"])
CLIENTS = st.sampled_from(["1", "2"])
PAYLOADS = st.sampled_from([b"", b"p", b"q", b"longer"])
COUNTERS = st.integers(1, 4)


class Lives(RuleBasedStateMachine):
    """Changes gather until a commit, which works or fails; a failed one must leave no trace."""

    def new_store(self) -> FailingMemory | FailingSqlite:
        raise NotImplementedError

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.portion = pytest.MonkeyPatch()
        self.portion.setattr(portions, "PORTION", 1)  # what is done in portions meets all that can happen
        self.loop = asyncio.new_event_loop()
        self.store = self.new_store()
        self.broker = self.run(Broker.open(self.store, tail=2000))
        self.model = Model()
        self.committed = Model()
        self.clean = True

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.run(self.broker.close())
            self.loop.close()
            self.portion.undo()

    # --- changes

    @rule(name=NAMES, payload=PAYLOADS)
    def publish(self, name: str, payload: bytes) -> None:
        self.clean = False
        if self.can_publish(name):
            assert self.broker.publish(name, payload) == self.model.publish(name, payload)
        else:
            with pytest.raises(NoSuchTopic):
                self.broker.publish(name, payload)

    @rule(name=NAMES, client=CLIENTS, counter=COUNTERS, payload=PAYLOADS)
    def publish_once(self, name: str, client: str, counter: int, payload: bytes) -> None:
        self.clean = False
        if self.can_publish(name):
            offset = self.broker.publish_once(name, payload, client, counter)
            assert offset == self.model.publish_once(name, client, counter, payload)

    @rule(name=NAMES, client=CLIENTS, sequence=COUNTERS, payloads=st.lists(PAYLOADS, min_size=1, max_size=4))
    def publish_sequence(self, name: str, client: str, sequence: int, payloads: list[bytes]) -> None:
        self.clean = False
        if not self.can_publish(name):
            return
        producer = f"seq-{client}"
        expected = self.model.sequences.get((producer, name), 0) + 1
        if sequence > expected:
            with pytest.raises(OutOfSequence) as caught:
                self.broker.publish_sequence(name, payloads, producer, sequence)
            assert caught.value.expected == expected
        else:
            self.broker.publish_sequence(name, payloads, producer, sequence)
            self.model.publish_sequence(name, producer, sequence, payloads)
        self.model.topics.add(name)  # publishing to a name that a filter waits for makes the topic

    @rule(name=NAMES, payloads=st.lists(PAYLOADS, min_size=1, max_size=12))
    def append(self, name: str, payloads: list[bytes]) -> None:
        self.clean = False
        first = self.broker.append(name, columns(name, payloads))
        offsets = [self.model.publish(name, payload) for payload in payloads]
        assert first == offsets[0]

    @rule(name=NAMES, client=CLIENTS, sequence=COUNTERS, payloads=st.lists(PAYLOADS, min_size=1, max_size=12))
    def append_sequence(self, name: str, client: str, sequence: int, payloads: list[bytes]) -> None:
        self.clean = False
        producer = f"seq-{client}"
        if sequence > self.broker.next_sequence(name, producer):
            with pytest.raises(OutOfSequence):
                self.broker.append(name, columns(name, payloads), "", producer, sequence)
        else:
            self.broker.append(name, columns(name, payloads), "", producer, sequence)
            self.model.publish_sequence(name, producer, sequence, payloads)
        assert self.broker.next_sequence(name, producer) == self.model.sequences.get((producer, name), 0) + 1

    @rule(client=CLIENTS, filter_=FILTERS)
    def subscribe(self, client: str, filter_: str) -> None:
        self.clean = False
        self.model.look(self.existing())
        self.broker.subscribe(client, filter_)
        self.model.subscribe(client, filter_)

    @rule(client=CLIENTS, filter_=FILTERS)
    def subscribe_to_the_earliest(self, client: str, filter_: str) -> None:
        self.clean = False
        self.model.look(self.existing())
        firsts = {name: self.broker.topics[name].first for name in self.existing()}
        self.broker.subscribe(client, filter_, earliest=True)
        self.model.subscribe(client, filter_, firsts)

    @rule(data=st.data())
    def begin_portion(self, data: st.DataObject) -> None:
        if self.broker.registry._beginning:
            self.clean = False
            some = sorted(self.broker.registry._beginning, key=lambda subscription: subscription.id)
            self.broker.registry.begin_portion(data.draw(st.sampled_from(some)))

    @rule()
    def begin_with_all(self) -> None:
        async def begun() -> None:
            for subscription in list(self.broker.registry._beginning):
                await self.broker.begun(subscription)

        self.run(begun())
        self.commit()
        assert not self.broker.registry._beginning

    @rule(client=CLIENTS, filter_=FILTERS)
    def unsubscribe(self, client: str, filter_: str) -> None:
        self.clean = False
        if (client, filter_) in self.model.pending:
            self.broker.unsubscribe(client, filter_)
            self.model.unsubscribe(client, filter_)
        else:
            with pytest.raises((NotSubscribed, NoSuchTopic)):
                self.broker.unsubscribe(client, filter_)

    @rule(data=st.data(), client=CLIENTS, filter_=FILTERS)
    def ack(self, data: st.DataObject, client: str, filter_: str) -> None:
        key = (client, filter_)
        durable = self.committed.pending.get(key, [])
        held = [m for m in self.model.pending.get(key, []) if m in durable]
        if not held:
            return
        name = data.draw(st.sampled_from(sorted({m[0] for m in held})))
        topic = self.broker.topics[name]
        wanted = {m[1] for m in held if m[0] == name and m[1] < topic.visible}
        if not wanted:
            return
        self.clean = False
        offsets = data.draw(st.sets(st.sampled_from(sorted(wanted)), min_size=1))
        subscription = self.broker.subscription(client, filter_)
        for offset in data.draw(st.permutations(sorted(offsets))):
            self.broker.ack(subscription, topic, offset, offset + 1)
        self.model.ack(client, filter_, name, offsets)

    @rule(counter=st.integers(0, 3), part=st.sampled_from("xy"), name=NAMES, payload=PAYLOADS)
    def stage(self, counter: int, part: str, name: str, payload: bytes) -> None:
        self.clean = False
        self.broker.staging.stage("query", counter, part, name, [(3, payload)])
        self.model.stage("query", counter, part, name, payload)

    @rule(
        counter=st.integers(0, 3),
        part=st.sampled_from("xy"),
        name=NAMES,
        payloads=st.lists(PAYLOADS, min_size=1, max_size=4),
    )
    def stage_columns(self, counter: int, part: str, name: str, payloads: list[bytes]) -> None:
        self.clean = False
        self.broker.staging.stage_batch("query", counter, part, name, columns(name, payloads))
        for payload in payloads:
            self.model.stage("query", counter, part, name, payload)

    @rule()
    def begin_stage(self) -> None:
        self.clean = False
        before = self.model.attempt
        counter, self.model.attempt = self.broker.staging.begin("query")
        assert counter == self.model.begin("query")
        assert self.model.attempt > before
        if before:
            with pytest.raises(TakenOver):
                self.broker.staging.commit("query", counter, None, before)

    @rule(part=st.sampled_from("xy"), name=NAMES, payload=PAYLOADS)
    def stage_attempt(self, part: str, name: str, payload: bytes) -> None:
        self.clean = False
        counter = self.model.done.get("query", -1) + 1
        if self.model.attempt:
            batch, attempt = columns(name, [payload]), self.model.attempt
            self.broker.staging.stage_batch("query", counter, part, name, batch, attempt=attempt)
            self.model.stage("query", counter, part, name, payload)

    @rule(counter=st.integers(0, 3), parts=st.sampled_from([None, ("x",), ("x", "y"), ("y", "x")]))
    def commit_stage(self, counter: int, parts: tuple[str, ...] | None) -> None:
        self.clean = False
        staged = {part for part, _, _ in self.model.staged.get(("query", counter), [])}
        if parts is not None and set(parts) - staged and counter > self.model.done.get("query", -1):
            with pytest.raises(NotStaged):
                self.broker.staging.commit("query", counter, parts)
        else:
            self.broker.staging.commit("query", counter, parts)
            self.model.commit_stage("query", counter, parts)

    # --- what becomes of them

    @rule()
    def commit(self) -> None:
        async def durable() -> None:
            await self.broker.commit()

        self.run(durable())
        self.committed = deepcopy(self.model)
        self.clean = True

    @rule()
    def fail(self) -> None:
        async def failing() -> None:
            # Something of the group must reach the store for it to fail.
            self.broker.new_client()
            with pytest.raises(StoreFull):
                await self.broker.commit()

        self.store.fails = True
        self.run(failing())
        self.store.fails = False
        self.model = deepcopy(self.committed)
        self.clean = True

    @rule(settled=st.booleans())
    def collect(self, *, settled: bool) -> None:
        self.commit()
        if settled:
            self.run(self.settle())
        self.run(self.broker.collector.collect())
        self.model.collect()
        self.commit()
        for name in filter(self.model.subscribed, self.model.topics):
            first = self.broker.topic(name).first
            assert first == self.model.first(name) or (not settled and first < self.model.first(name))
        if settled:
            assert self.existing() == self.model.topics

    async def settle(self) -> None:
        while self.broker.registry.portions._work:  # noqa: ASYNC110 - it is a test
            await asyncio.sleep(0)

    def can_publish(self, name: str) -> bool:
        return self.model.subscribed(name) or name in self.existing()

    def existing(self) -> set[str]:
        return {name for name, topic in self.broker.topics.items() if topic.exists}

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.broker.close())
        self.committed = deepcopy(self.model)
        self.open_again()

    @rule()
    def crash_and_start(self) -> None:
        if self.broker.commits._writing is not None:
            self.broker.commits._writing.cancel()
        self.broker.commits.pending.asked = False
        self.store.crash()
        self.model = deepcopy(self.committed)
        self.open_again()

    def open_again(self) -> None:
        self.store = self.new_store()
        self.broker = self.run(Broker.open(self.store, tail=2000))
        self.clean = True

    # --- and what everyone sees

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "broker") or not self.clean:
            return
        # What nobody subscribes to goes soon.
        wanted = set(filter(self.model.subscribed, self.model.topics))
        assert set(filter(self.model.subscribed, self.existing())) == wanted
        for name in wanted:
            assert self.broker.topic(name).next == self.model.nexts.get(name, 1)
        for (client, filter_), pending in self.model.pending.items():
            fetched = self.fetch(client, filter_)
            if self.broker.subscription(client, filter_).beginning:
                assert [message for message in pending if message in fetched] == fetched
            else:
                assert fetched == pending

    def fetch(self, client: str, filter_: str) -> list[tuple[str, int, bytes]]:
        subscription = self.broker.subscription(client, filter_)
        batches = self.run(self.broker.fetch(subscription, list(subscription.cursors), 1 << 30))
        return [
            (batch.topic, offset, payload)
            for batch in batches
            for offset, payload in enumerate(batch.payloads, batch.base)
        ]


def columns(name: str, payloads: list[bytes]) -> ColumnBatch:
    """Messages as an Arrow client sends them."""
    return take(pa.record_batch({"payload": pa.array(payloads, pa.binary())}), name, 1, 1 << 30)


class InMemory(Lives):
    def new_store(self) -> FailingMemory:
        if not hasattr(self, "store"):
            self.kept = FailingMemory(checkpoint_rows=10)
        return self.kept


class OnDisk(Lives):
    """Checkpoints, their slices and portions of sweeps meet at every step."""

    segments_from = 256 << 10

    def new_store(self) -> FailingSqlite:
        if not hasattr(self, "folder"):
            self.folder = Path(tempfile.mkdtemp())
            self.patch = pytest.MonkeyPatch()
            self.patch.setattr(segments, "SIZE", 2000)
            shrink(self.patch, 1)
        assert_sound(self.folder)
        return FailingSqlite(self.folder, checkpoint_rows=1, segments_from=self.segments_from)

    @rule()
    def sweep(self) -> None:
        self.commit()  # the loop runs, and with it whatever waits for a commit
        self.run(self.store.sweep())

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.patch.undo()
            assert_sound(self.folder)
            shutil.rmtree(self.folder)


class InSegments(OnDisk):
    """And every body is in a file of its own kind, each of which is soon full."""

    segments_from = 1


TestInMemory = InMemory.TestCase
TestInSegments = pytest.mark.slow(InSegments.TestCase)
TestOnDisk = pytest.mark.slow(OnDisk.TestCase)
TestInMemory.settings = TestInSegments.settings = TestOnDisk.settings = settings(stateful_step_count=60)
