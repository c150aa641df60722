"""What a connection is pushed: every message its subscriptions match, once, in order, from where it was."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker, Limits
from stafeta.broker.consumer import Consumer
from stafeta.broker.topic import Topic
from stafeta.errors import Lagging, NoSuchTopic
from stafeta.message import Batch
from stafeta.testing.memory import MemoryStore
from tests.broker.batches import interleaved
from tests.broker.stores import FailingMemory, FailingSqlite, run


async def received(consumer: Consumer, size: int = 1 << 20, overhead: int = 0) -> list[str]:
    """All that there is to take, acknowledged."""
    got: list[str] = []
    while consumer.ready:
        batches = consumer.take(size, overhead)
        if batches is None:
            batches = await consumer.read(size, overhead)
        got += interleaved(batches)
        consumer.done(consumer.spans(batches))
    return got


async def publish(broker: Broker, *messages: str) -> None:
    for message in messages:
        name, _, text = message.partition("=")
        broker.publish(name, text.encode(), create=True)
    await broker.commit()


def test_several_topics_come_in_the_order_of_publication() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        consumer = broker.consumer("c")
        consumer.subscribe("a/+", durable=False)
        consumer.subscribe("a/x", durable=True)
        published = ["a/x=0", "a/y=1", "a/x=2", "a/z=3", "a/y=4"]
        await publish(broker, *published)
        assert await received(consumer) == published, "each once, in order"

    run(work())


@pytest.mark.parametrize("tail", [0, 1 << 20])
def test_a_slow_feed_is_served_from_the_log(tmp_path: Path, tail: int) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), tail=tail)
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=False)
        expected: list[str] = []
        for at in range(300):
            expected.append(f"t/{at % 3}={at}")
            broker.publish(f"t/{at % 3}", b"%d" % at, create=True)
            if at % 7 == 0:
                await broker.commit()
        await broker.commit()
        got: list[str] = []
        while len(got) < 300:
            batches = await consumer.read(50)
            got += interleaved(batches)
            consumer.done(consumer.spans(batches))
            await broker.collector.collect()
        assert got == expected
        await broker.close()

    run(work())


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(0, 20),
    st.booleans(),
)
def test_whatever_the_portions_are_nothing_is_missed_repeated_or_moved(
    commits: list[list[int]], size: int, overhead: int, from_memory: bool
) -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore(), tail=1 << 20 if from_memory else 0)
        consumer = broker.consumer("c")
        consumer.subscribe("#", durable=True)
        expected: list[str] = []
        got: list[str] = []
        for at, commit in enumerate(commits):
            messages = [f"t/{topic}={at}.{number}" for number, topic in enumerate(commit)]
            expected += messages
            await publish(broker, *messages)
            if consumer.ready and at % 2:  # and only a part of it
                batches = consumer.take(size, overhead)
                batches = await consumer.read(size, overhead) if batches is None else batches
                got += interleaved(batches)
                consumer.done(consumer.spans(batches))
        got += await received(consumer, size, overhead)
        assert got == expected

    run(work())


def test_the_batches_of_equal_feeds_are_the_same_objects() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumers = [broker.consumer(f"c{number}") for number in range(3)]
        for consumer in consumers:
            consumer.subscribe("t/#", durable=False)
        await publish(broker, *(f"t/{at % 4}={at}" for at in range(1000)))
        portions = [consumer.take(10_000, 50) for consumer in consumers]
        assert portions[0] is not None
        assert len(portions[0]) > 1
        for portion in portions[1:]:
            assert portion is not None
            assert list(map(id, portion)) == list(map(id, portions[0]))

    run(work())


def test_a_live_subscription_that_lags_too_far_is_ended() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_lag=10))
        told: list[bool] = []
        consumer = broker.consumer("c", lambda: told.append(consumer.lagging is not None))
        consumer.subscribe("t", durable=False)
        for _ in range(10):
            await publish(broker, "t=x")
        assert told == [False]
        await publish(broker, "t=x")
        assert told == [False, True], "although it takes nothing"
        with pytest.raises(Lagging, match="11 messages behind"):
            consumer.take(1 << 20)
        consumer.close()
        with pytest.raises(NoSuchTopic):
            broker.topic("t")

    run(work())


def test_a_durable_subscription_may_lag_as_far_as_it_likes() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(max_lag=3))
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=True)
        consumer.subscribe("#", durable=False)
        for at in range(20):
            await publish(broker, f"t={at}")
        assert await received(consumer) == [f"t={at}" for at in range(20)]

    run(work())


def test_a_durable_feed_goes_on_where_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=True)
        await publish(broker, "t=1", "t=2")
        batches = await consumer.read(1)
        consumer.done(consumer.spans([batches[0].cut(1, 2)]))
        consumer.close()
        broker.publish("t", b"3")
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == ["t=2", "t=3"]
        await broker.close()

    run(work())


def test_a_lasting_subscription_is_remembered_but_holds_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False, persistent=True)
        consumer.subscribe("w/+", durable=False, persistent=True)
        await publish(broker, "t=1", "w/1=1")
        assert await received(consumer) == ["t=1", "w/1=1"]
        consumer.close()
        await publish(broker, "t=2", "w/1=2", "w/2=2")
        await broker.collector.collect()
        assert broker.topic("t").first == broker.topic("t").next, "nobody waits for what came meanwhile"
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        await publish(broker, "t=3", "w/2=3", "w/3=3")
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == []
        await publish(broker, "t=4", "w/1=4", "w/3=4", "w/4=4")
        assert await received(consumer) == ["t=4", "w/1=4", "w/3=4", "w/4=4"]
        await broker.close()

    run(work())


def test_a_durable_subscription_can_become_lasting_and_durable_again(tmp_path: Path) -> None:
    async def away(broker: Broker, *messages: str) -> list[str]:
        """What the client gets of what comes while it is away."""
        await publish(broker, *messages)
        consumer = broker.consumer("c")
        consumer.resume()
        got = await received(consumer)
        consumer.close()
        return got

    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        for durable, expected in ((True, ["t=1"]), (False, []), (True, ["t=3"]), (False, [])):
            consumer = broker.consumer("c")
            consumer.resume()
            consumer.subscribe("t", durable=durable, persistent=True)
            await broker.commit()
            consumer.close()
            number = "1" if durable and expected == ["t=1"] else "3" if durable else "2"
            assert await away(broker, f"t={number}") == expected
            await broker.close()
            broker = await Broker.open(FailingSqlite(tmp_path))
        broker.unsubscribe("c", "t")
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert broker.clients == {}
        await broker.close()

    run(work())


def test_changed_and_ended_in_one_commit_is_ended(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.subscribe("c", "t", durable=True)
        await broker.commit()
        broker.subscribe("c", "t", durable=False, persistent=True)
        broker.unsubscribe("c", "t")
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert broker.clients == {}
        await broker.close()

    run(work())


def test_what_was_published_between_two_subscriptions_does_not_come() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.subscribe("other", "#")
        consumer = broker.consumer("c")
        consumer.subscribe("t", durable=False)
        await publish(broker, "t=1")
        assert await received(consumer) == ["t=1"]
        consumer.unsubscribe("t")
        await publish(broker, "t=2")
        consumer.subscribe("t", durable=False)
        await publish(broker, "t=3")
        assert await received(consumer) == ["t=3"]

    run(work())


def test_one_of_two_subscriptions_that_overlap_can_end() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("t/#", durable=False)
        consumer.subscribe("t/1", durable=True)
        await publish(broker, "t/1=1")
        consumer.unsubscribe("t/#")
        await publish(broker, "t/1=2", "t/2=2")
        assert await received(consumer) == ["t/1=1", "t/1=2"]

    run(work())


def test_the_last_value_comes_first_and_once_to_each_subscription() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.publish("t", b"1", create=True, keep_last=True)
        broker.publish("t", b"2", create=True, keep_last=True)
        await broker.commit()
        await broker.collector.collect()
        broker.publish("t", b"3", keep_last=True)  # not durable yet, when somebody subscribes
        consumer = broker.consumer("c")
        consumer.subscribe("t/#", durable=False, last_of="t")
        await publish(broker, "t/below=4")
        assert await received(consumer) == ["t=3", "t/below=4"]
        consumer.subscribe("t/#", durable=False, last_of="t")
        assert await received(consumer) == ["t=3"]
        consumer.subscribe("none/#", durable=False, last_of="none")
        assert await received(consumer) == []

    run(work())


def test_a_last_value_outlives_the_broker(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.publish("t", b"1", create=True, keep_last=True)
        await broker.commit()
        await publish(broker, "t=2")
        await broker.collector.collect()
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        await broker.collector.collect()
        consumer = broker.consumer("c")
        consumer.subscribe("t/#", durable=False, last_of="t")
        assert await received(consumer) == ["t=2"]
        await broker.close()

    run(work())


def test_what_was_acknowledged_elsewhere_is_not_handed_out() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "t")
        await publish(broker, *(f"t={at}" for at in range(1, 7)))
        broker.ack(subscription, broker.topic("t"), 2, 4)
        consumer = broker.consumer("c")
        consumer.resume()
        assert await received(consumer) == ["t=1", "t=4", "t=5", "t=6"]

    run(work())


def test_a_subscription_that_could_not_be_stored_leaves_a_feed_that_can_be_closed() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        consumer = broker.consumer("c")
        store.fails = True
        consumer.subscribe("t", durable=True)
        consumer.subscribe("u", durable=False)
        with pytest.raises(Exception, match="No room"):
            await broker.commit()
        store.fails = False
        await publish(broker, "t=1", "u=1")
        assert await received(consumer) == []
        consumer.close()

    run(work())


def test_readings_published_together_go_where_somebody_is() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("a/+", durable=False)
        readings = [("a/1", 0, b"1", "s"), ("b", 0, b"2", "s"), ("a/2", 0, b"3", "s"), ("b", 0, b"4", "s")]
        assert broker.publish_all([*readings, ("no name", 0, b"5", "s"), ("a/1", 0, b"6", "s")]) == 3
        await broker.commit()
        assert await received(consumer) == ["a/1=1", "a/2=3", "a/1=6"]

    run(work())


def test_subscribing_again_leaves_nothing_out_of_what_is_on_its_way() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        consumer = broker.consumer("c")
        consumer.subscribe("t/#", durable=False, last_of="t")
        await broker.commit()
        for payload in (b"1", b"2", b"3"):
            broker.publish("t", payload)
        consumer.subscribe("t/#", durable=False, last_of="t")
        await broker.commit()
        assert await received(consumer) == ["t=1", "t=2", "t=3"]

    run(work())


@pytest.mark.parametrize("published", [15, 40])
def test_what_is_collected_while_it_is_read_ends_a_follower(
    tmp_path: Path, published: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever behind messages that it has never seen."""

    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), Limits(max_lag=10), tail=0)
        follower = broker.consumer("f", unbounded_lag=True)
        follower.subscribe("t", durable=False)
        await publish(broker, *(f"t={number}" for number in range(published)))
        read = broker.log.read

        async def overtaken(topic: Topic, *how: int) -> list[Batch]:
            await broker.collector.collect()
            return await read(topic, *how)

        monkeypatch.setattr(broker.log, "read", overtaken)
        assert follower.take(1 << 20) is None, "they are not in memory"
        with pytest.raises(
            Lagging, match=f"Messages 1 to {published - 10} of 't' went before they were read"
        ):
            await follower.read(1 << 20)
        with pytest.raises(Lagging):
            follower.take(1 << 20)
        await broker.close()

    run(work())
