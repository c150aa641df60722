"""Transactions that fail half-way, and what becomes of what was staged."""

import pytest

from stafeta.broker import Broker, Limits
from stafeta.broker.portions import PORTION
from stafeta.errors import InvalidName, InvalidRequest, LimitReached, OutOfSequence, StoreFull
from stafeta.message import RowBatch
from stafeta.store.port import Group
from tests.broker.stores import FailingMemory, run


def rows(*payloads: bytes) -> RowBatch:
    return RowBatch("", 0, [(0, 0, "", "", 3, None, payload) for payload in payloads])


def test_a_transaction_whose_topics_cannot_all_be_made_changes_nothing() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_topics=2))
        broker.subscribe("c", "a")
        for topic in ("a", "b", "c"):
            broker.staging.stage("query", 1, "x", topic, [(3, b"row")])
        await broker.commit()
        for _ in range(2):
            with pytest.raises(LimitReached):
                broker.staging.commit("query", 1)
            await broker.commit()
            assert broker.topic("a").next == 1
        broker.reconfigure(Limits(), lambda name: None)
        await broker.staging.commit("query", 1)
        assert [broker.topic(topic).visible for topic in ("a", "b", "c")] == [2, 2, 2]
        await broker.close()

    run(work())


class CountingMemory(FailingMemory):
    """A store that knows how many topics and cursors the largest group had, beside what it promotes."""

    most = 0

    async def commit(self, group: Group) -> None:
        self.most = max(self.most, len(group.topics), len(group.cursors))
        await super().commit(group)


def test_the_topics_of_a_large_transaction_are_made_in_portions_and_seen_at_once() -> None:
    async def work() -> None:
        store = CountingMemory()
        broker = await Broker.open(store, Limits(max_topics=3 * PORTION))
        broker.subscribe("c", "#")
        names = [f"t/{number}" for number in range(2 * PORTION + 1)]
        broker.staging.stage_apart("query", 1, "x", of_topics(**dict.fromkeys(names, (b"1",))))
        other = [f"more/{number}" for number in range(PORTION + 1)]
        broker.staging.stage_apart("query", 2, "x", of_topics(**dict.fromkeys(other, (b"1",))))
        await broker.commit()
        await broker.staging.prepare("query", 1, ["x"])
        assert all(broker.topic(name).visible == 1 for name in names)
        await broker.staging.commit("query", 1)
        assert all(broker.topic(name).visible == 2 for name in names)
        assert store.most == PORTION
        with pytest.raises(LimitReached):  # before any of them is made
            await broker.staging.prepare("query", 2)
        assert len(await broker.listed("#")) == len(names)
        await broker.close()

    run(work())


def test_a_batch_that_is_staged_again_is_staged_once() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        broker.subscribe("c", "a")
        stage = broker.staging.stage_batch
        await stage("query", 1, "x", "a", rows(b"1", b"2"), 1)
        await stage("query", 1, "x", "a", rows(b"1", b"2", b"3"), 1)
        with pytest.raises(OutOfSequence) as caught:
            stage("query", 1, "x", "a", rows(b"5"), 5)
        assert caught.value.expected == 4
        await broker.close()
        again = await Broker.open(store)
        stage = again.staging.stage_batch
        await stage("query", 1, "x", "a", rows(b"3", b"4"), 3)
        await stage("query", 1, "y", "a", rows(b"5"), 1)
        await again.staging.commit("query", 1)
        batches = await again.read(again.topic("a"), 1, 1 << 20)
        assert [payload for batch in batches for payload in batch.payloads] == [b"1", b"2", b"3", b"4", b"5"]
        await again.close()

    run(work())


def of_topics(**payloads: tuple[bytes, ...]) -> list[RowBatch]:
    return [
        RowBatch(topic, 0, [(at, 0, "", "", 3, None, one) for at, one in enumerate(some)])
        for topic, some in payloads.items()
    ]


def test_what_is_of_several_topics_is_staged_whole_and_once() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        stage = broker.staging.stage_apart
        first = of_topics(a=(b"1", b"2"), b=(b"3",))
        await stage("query", 1, "x", first, 1)
        await stage("query", 1, "x", first, 1)
        await stage("query", 1, "x", of_topics(c=(b"4",)), 4)
        with pytest.raises(OutOfSequence) as caught:
            stage("query", 1, "x", of_topics(a=(b"9",)), 6)
        assert caught.value.expected == 5
        with pytest.raises(InvalidRequest, match="is staged again as it was"):
            stage("query", 1, "x", of_topics(c=(b"4",), a=(b"5",)), 4)
        with pytest.raises(InvalidName):
            stage("query", 1, "x", [*of_topics(a=(b"9",)), RowBatch("$sys/mine", 0, first[0].rows)], 5)
        await broker.close()
        again = await Broker.open(store)
        stage = again.staging.stage_apart
        await stage("query", 1, "x", of_topics(c=(b"4",)), 4)
        await stage("query", 1, "x", of_topics(a=(b"5",)), 5)
        for topic in "abc":
            again.subscribe("c", topic)
        await again.staging.verify("query", 1)
        await again.staging.commit("query", 1, {"x": 5})
        await stage("query", 1, "x", first, 1)  # which is done
        found = {}
        for topic in "abc":
            batches = await again.read(again.topic(topic), 1, 1 << 20)
            found[topic] = [payload for batch in batches for payload in batch.payloads]
        assert found == {"a": [b"1", b"2", b"5"], "b": [b"3"], "c": [b"4"]}
        await again.close()

    run(work())


def test_as_many_producers_of_transactions_are_remembered_as_may_be() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_producers=2))
        for producer in ("a", "b"):
            counter, attempt = broker.staging.begin(producer)
            broker.staging.stage_batch(producer, counter, "p", "t", rows(b"x"), attempt=attempt)
            await broker.staging.commit(producer, counter, attempt=attempt)
        with pytest.raises(LimitReached, match="2 producers of transactions"):
            broker.staging.begin("c")
        broker.staging.stage_batch("c", 0, "p", "t", rows(b"x"))
        with pytest.raises(LimitReached, match="2 producers of transactions"):
            broker.staging.commit("c", 0)
        assert broker.staging.begin("a")[0] == 1
        await broker.close()

    run(work())


def test_a_transaction_whose_beginning_could_not_be_stored_is_not_remembered() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store, Limits(max_producers=1))
        store.fails = True
        broker.staging.begin("a")
        with pytest.raises(StoreFull):
            await broker.commit()
        store.fails = False
        _, attempt = broker.staging.begin("b")
        broker.staging.stage_batch("b", 0, "p", "t", rows(b"x"), attempt=attempt)
        await broker.staging.commit("b", 0, attempt=attempt)
        assert broker.topic("t").visible == 2
        await broker.close()

    run(work())
