"""What a connection is pushed: every message its subscriptions match, once, in order, from where it was."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker, Limits
from stafeta.broker.feed import Feed
from stafeta.errors import Lagging, NoSuchTopic
from stafeta.testing.memory import MemoryStore
from tests.broker.batches import interleaved
from tests.broker.stores import FailingMemory, FailingSqlite, run


async def received(feed: Feed, size: int = 1 << 20, overhead: int = 0) -> list[str]:
    """All that there is to take, acknowledged."""
    got: list[str] = []
    while feed.ready:
        batches = feed.take(size, overhead)
        if batches is None:
            batches = await feed.read(size, overhead)
        got += interleaved(batches)
        feed.done(feed.spans(batches))
    return got


async def publish(broker: Broker, *messages: str) -> None:
    for message in messages:
        name, _, text = message.partition("=")
        broker.publish(name, text.encode(), create=True)
    await broker.receipt()


def test_several_topics_come_in_the_order_of_publication() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory())
        feed = broker.feed("c")
        feed.subscribe("a/+", durable=False)
        feed.subscribe("a/x", durable=True)
        published = ["a/x=0", "a/y=1", "a/x=2", "a/z=3", "a/y=4"]
        await publish(broker, *published)
        assert await received(feed) == published, "each once, in order"

    run(work())


@pytest.mark.parametrize("tail", [0, 1 << 20])
def test_a_slow_feed_is_served_from_the_log(tmp_path: Path, tail: int) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), tail=tail)
        feed = broker.feed("c")
        feed.subscribe("#", durable=False)
        expected: list[str] = []
        for at in range(300):
            expected.append(f"t/{at % 3}={at}")
            broker.publish(f"t/{at % 3}", b"%d" % at, create=True)
            if at % 7 == 0:
                await broker.receipt()
        await broker.receipt()
        got: list[str] = []
        while len(got) < 300:
            batches = await feed.read(50)
            got += interleaved(batches)
            feed.done(feed.spans(batches))
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
        feed = broker.feed("c")
        feed.subscribe("#", durable=True)
        expected: list[str] = []
        got: list[str] = []
        for at, commit in enumerate(commits):
            messages = [f"t/{topic}={at}.{number}" for number, topic in enumerate(commit)]
            expected += messages
            await publish(broker, *messages)
            if feed.ready and at % 2:  # and only a part of it
                batches = feed.take(size, overhead)
                batches = await feed.read(size, overhead) if batches is None else batches
                got += interleaved(batches)
                feed.done(feed.spans(batches))
        got += await received(feed, size, overhead)
        assert got == expected

    run(work())


def test_the_batches_of_equal_feeds_are_the_same_objects() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        feeds = [broker.feed(f"c{number}") for number in range(3)]
        for feed in feeds:
            feed.subscribe("t/#", durable=False)
        await publish(broker, *(f"t/{at % 4}={at}" for at in range(1000)))
        portions = [feed.take(10_000, 50) for feed in feeds]
        assert portions[0] is not None
        assert len(portions[0]) > 1
        for portion in portions[1:]:
            assert portion is not None
            assert list(map(id, portion)) == list(map(id, portions[0]))

    run(work())


def test_a_live_subscription_that_lags_too_far_is_ended() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(lag=10))
        told: list[bool] = []
        feed = broker.feed("c", lambda: told.append(feed.lagging is not None))
        feed.subscribe("t", durable=False)
        for _ in range(10):
            await publish(broker, "t=x")
        assert told == [False]
        await publish(broker, "t=x")
        assert told == [False, True], "although it takes nothing"
        with pytest.raises(Lagging, match="11 messages behind"):
            feed.take(1 << 20)
        feed.close()
        with pytest.raises(NoSuchTopic):
            broker.topic("t")

    run(work())


def test_a_durable_subscription_may_lag_as_far_as_it_likes() -> None:
    async def work() -> None:
        broker = await Broker.open(FailingMemory(), Limits(lag=3))
        feed = broker.feed("c")
        feed.subscribe("t", durable=True)
        feed.subscribe("#", durable=False)
        for at in range(20):
            await publish(broker, f"t={at}")
        assert await received(feed) == [f"t={at}" for at in range(20)]

    run(work())


def test_a_durable_feed_goes_on_where_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        feed = broker.feed("c")
        feed.subscribe("t", durable=True)
        await publish(broker, "t=1", "t=2")
        batches = await feed.read(1)
        feed.done(feed.spans([batches[0].cut(1, 2)]))
        feed.close()
        broker.publish("t", b"3")
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        feed = broker.feed("c")
        feed.resume()
        assert await received(feed) == ["t=2", "t=3"]
        await broker.close()

    run(work())


def test_a_lasting_subscription_is_remembered_but_holds_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        feed = broker.feed("c")
        feed.subscribe("t", durable=False, lasting=True)
        feed.subscribe("w/+", durable=False, lasting=True)
        await publish(broker, "t=1", "w/1=1")
        assert await received(feed) == ["t=1", "w/1=1"]
        feed.close()
        await publish(broker, "t=2", "w/1=2", "w/2=2")
        await broker.collector.collect()
        assert broker.topic("t").first == broker.topic("t").next, "nobody waits for what came meanwhile"
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        await publish(broker, "t=3", "w/2=3", "w/3=3")
        feed = broker.feed("c")
        feed.resume()
        assert await received(feed) == []
        await publish(broker, "t=4", "w/1=4", "w/3=4", "w/4=4")
        assert await received(feed) == ["t=4", "w/1=4", "w/3=4", "w/4=4"]
        await broker.close()

    run(work())


def test_a_durable_subscription_can_become_lasting_and_durable_again(tmp_path: Path) -> None:
    async def away(broker: Broker, *messages: str) -> list[str]:
        """What the client gets of what comes while it is away."""
        await publish(broker, *messages)
        feed = broker.feed("c")
        feed.resume()
        got = await received(feed)
        feed.close()
        return got

    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        for durable, expected in ((True, ["t=1"]), (False, []), (True, ["t=3"]), (False, [])):
            feed = broker.feed("c")
            feed.resume()
            feed.subscribe("t", durable=durable, lasting=True)
            await broker.receipt()
            feed.close()
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
        await broker.receipt()
        broker.subscribe("c", "t", durable=False, lasting=True)
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
        feed = broker.feed("c")
        feed.subscribe("t", durable=False)
        await publish(broker, "t=1")
        assert await received(feed) == ["t=1"]
        feed.unsubscribe("t")
        await publish(broker, "t=2")
        feed.subscribe("t", durable=False)
        await publish(broker, "t=3")
        assert await received(feed) == ["t=3"]

    run(work())


def test_one_of_two_subscriptions_that_overlap_can_end() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        feed = broker.feed("c")
        feed.subscribe("t/#", durable=False)
        feed.subscribe("t/1", durable=True)
        await publish(broker, "t/1=1")
        feed.unsubscribe("t/#")
        await publish(broker, "t/1=2", "t/2=2")
        assert await received(feed) == ["t/1=1", "t/1=2"]

    run(work())


def test_the_last_value_comes_first_and_once_to_each_subscription() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        broker.publish("t", b"1", create=True, keep_last=True)
        broker.publish("t", b"2", create=True, keep_last=True)
        await broker.receipt()
        await broker.collector.collect()
        broker.publish("t", b"3", keep_last=True)  # not durable yet, when somebody subscribes
        feed = broker.feed("c")
        feed.subscribe("t/#", durable=False, last_of="t")
        await publish(broker, "t/below=4")
        assert await received(feed) == ["t=3", "t/below=4"]
        feed.subscribe("t/#", durable=False, last_of="t")
        assert await received(feed) == ["t=3"]
        feed.subscribe("none/#", durable=False, last_of="none")
        assert await received(feed) == []

    run(work())


def test_a_last_value_outlives_the_broker(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.publish("t", b"1", create=True, keep_last=True)
        await broker.receipt()
        await publish(broker, "t=2")
        await broker.collector.collect()
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path))
        await broker.collector.collect()
        feed = broker.feed("c")
        feed.subscribe("t/#", durable=False, last_of="t")
        assert await received(feed) == ["t=2"]
        await broker.close()

    run(work())


def test_what_was_acknowledged_elsewhere_is_not_handed_out() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        subscription = broker.subscribe("c", "t")
        await publish(broker, *(f"t={at}" for at in range(1, 7)))
        broker.ack(subscription, broker.topic("t"), 2, 4)
        feed = broker.feed("c")
        feed.resume()
        assert await received(feed) == ["t=1", "t=4", "t=5", "t=6"]

    run(work())


def test_a_subscription_that_could_not_be_stored_leaves_a_feed_that_can_be_closed() -> None:
    async def work() -> None:
        store = FailingMemory()
        broker = await Broker.open(store)
        feed = broker.feed("c")
        store.fails = True
        feed.subscribe("t", durable=True)
        feed.subscribe("u", durable=False)
        with pytest.raises(Exception, match="No room"):
            await broker.receipt()
        store.fails = False
        await publish(broker, "t=1", "u=1")
        assert await received(feed) == []
        feed.close()

    run(work())


def test_readings_published_together_go_where_somebody_is() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        feed = broker.feed("c")
        feed.subscribe("a/+", durable=False)
        readings = [("a/1", 0, b"1", "s"), ("b", 0, b"2", "s"), ("a/2", 0, b"3", "s"), ("b", 0, b"4", "s")]
        assert broker.publish_all([*readings, ("no name", 0, b"5", "s"), ("a/1", 0, b"6", "s")]) == 3
        await broker.receipt()
        assert await received(feed) == ["a/1=1", "a/2=3", "a/1=6"]

    run(work())


def test_subscribing_again_leaves_nothing_out_of_what_is_on_its_way() -> None:
    async def work() -> None:
        broker = await Broker.open(MemoryStore())
        feed = broker.feed("c")
        feed.subscribe("t/#", durable=False, last_of="t")
        await broker.receipt()
        for payload in (b"1", b"2", b"3"):
            broker.publish("t", payload)
        feed.subscribe("t/#", durable=False, last_of="t")
        await broker.receipt()
        assert await received(feed) == ["t=1", "t=2", "t=3"]

    run(work())
