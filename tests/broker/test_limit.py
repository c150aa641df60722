"""Whoever asks for few messages is read few: what else waits costs him, and the broker, nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run

MESSAGES = 30


@given(st.sets(st.integers(1, MESSAGES)), st.integers(1, MESSAGES + 1))
def test_the_first_that_are_not_acknowledged_come(acknowledged: set[int], limit: int) -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "t")
        for number in range(MESSAGES):
            broker.publish("t", b"%d" % (number + 1))
            await broker.commit()
        topic = broker.topic("t")
        broker.ack_all(subscription, topic, [(one, one + 1) for one in sorted(acknowledged)])
        batches = await broker.fetch(subscription, [topic], 1 << 20, limit)
        found = [int(payload) for batch in batches for payload in batch.payloads]
        expected = sorted(set(range(1, MESSAGES + 1)) - acknowledged)
        assert found == expected[:limit]
        assert broker.totals.delivered == len(found), "only what is handed out was read"
        await broker.close()

    run(work())


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_of_several_topics_they_come_in_order(limit: int) -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "#")
        for number in range(MESSAGES):
            broker.publish(f"t{number % 3}", b"%d" % number)
        await broker.commit()
        seen: list[int] = []
        while batches := await broker.fetch(subscription, None, 1 << 20, limit):
            for batch in batches:
                assert batch.count <= limit
                seen += [int(payload) for payload in batch.payloads]
                broker.ack(subscription, broker.topic(batch.topic), batch.base, batch.end)
        assert seen == list(range(MESSAGES))
        await broker.close()

    run(work())
