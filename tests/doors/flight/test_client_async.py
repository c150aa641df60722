"""The native client's asyncio twins."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stafeta
from stafeta.clients.flight import async_streams
from stafeta.clients.flight.async_connection import AsyncConnection
from stafeta.clients.flight.producer import Published
from stafeta.errors import Disconnected, InvalidMessage, NoReply, NoSuchTopic, TakenOver
from tests.brokers import BrokerProcess
from tests.doors.flight.peers import Place
from tests.waiting import PATIENCE, wait_until


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **options), 60))

    return run


def address(place: Place) -> str:
    host, port = place
    return f"grpc://{host}:{port}"


# --- refused, and not there


@on_a_loop
async def test_nobody_is_there() -> None:
    with pytest.raises(NoReply, match="Connection refused"):
        await stafeta.connect_async("grpc://127.0.0.1:1", timeout=0.3)


@on_a_loop
async def test_refusals(place: Place, topic: str, name: str) -> None:
    async with stafeta.connect_async(address(place)) as broker:
        with pytest.raises(NoSuchTopic):
            await broker.read(topic)
        with pytest.raises(InvalidMessage):
            await broker.publish(topic, ["x"], kind="int")
        with pytest.raises(InvalidMessage, match="'x' is not of the kind int"):
            async with broker.producer(topic, kind="int") as producer:
                await producer.send("x")
        async with broker.subscribe(topic, name=name) as first, broker.subscribe(topic, name=name):
            with pytest.raises(TakenOver):
                await anext(first)
    with pytest.raises(Disconnected, match="was closed"):
        await broker.stats()
    with pytest.raises(Disconnected, match="was closed"):
        await producer.send("x")


def test_a_broker_that_is_stopped_ends_in_no_reply(tmp_path: Path) -> None:
    async def main(process: BrokerProcess) -> None:
        async with stafeta.connect_async(address(process.door("flight")), timeout=1) as broker:
            subscription = await broker.subscribe("t")
            process.send_signal(signal.SIGSTOP)
            try:
                for hangs in (
                    lambda: broker.publish("t", ["x"]),
                    lambda: broker.read("t"),
                    lambda: anext(subscription),
                    broker.stats,
                ):
                    with pytest.raises(NoReply, match=r"has not answered for 1 s"):
                        await hangs()
            finally:
                process.send_signal(signal.SIGCONT)
            assert (await anext(subscription)).payloads() == [b"x"]

    with BrokerProcess(tmp_path / "data", "--set", 'topics."#".keep=36500d', doors=("flight",)) as process:
        asyncio.run(main(process))


# --- cancelled


def test_whatever_waits_can_be_cancelled_and_the_loop_ends_at_once(tmp_path: Path) -> None:
    async def main(process: BrokerProcess) -> None:
        broker = await stafeta.connect_async(address(process.door("flight")), timeout=PATIENCE)
        producer = await broker.producer("t")
        subscription = await broker.subscribe("t")
        process.send_signal(signal.SIGSTOP)
        await producer.send("x")

        async def follow() -> None:
            async for _ in broker.batches("t", follow=True):
                pass

        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(one)
            for one in (
                broker.publish("t", ["y"]),
                broker.read("t"),
                broker.stats(),
                anext(subscription),
                producer.flush(),
                follow(),
                broker.subscribe("t", name="reader").__aenter__(),
            )
        ]
        done, _ = await asyncio.wait(tasks, timeout=0.3)
        assert not done
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(one, asyncio.CancelledError)
            for one in await asyncio.gather(*tasks, return_exceptions=True)
        )
        with pytest.raises(NoReply):
            await broker.close(0.1)

    with BrokerProcess(tmp_path / "data", doors=("flight",)) as process:
        began = time.monotonic()
        try:
            asyncio.run(main(process))
            assert time.monotonic() - began < 20
        finally:
            process.send_signal(signal.SIGCONT)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("stafeta")])


@on_a_loop
async def test_a_task_that_was_cancelled_loses_no_batch(place: Place, topic: str) -> None:
    async with stafeta.connect_async(address(place)) as broker, broker.subscribe(topic) as subscription:
        for number in range(20):
            waiting = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await broker.publish(topic, [str(number)])
            assert (await anext(subscription)).payloads() == [b"%d" % number]


def test_what_a_cancelled_task_has_handed_over_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [str(number) for number in range(20)]
    monkeypatch.setattr(async_streams, "EXIT_TIMEOUT", PATIENCE)

    async def produce(broker: AsyncConnection) -> None:
        async with broker.producer("producer", linger=PATIENCE) as producer:
            for text in texts:
                await producer.send(text)
            await asyncio.Event().wait()

    async def main(process: BrokerProcess) -> None:
        place = address(process.door("flight"))
        broker = await stafeta.connect_async(place, timeout=PATIENCE)
        process.send_signal(signal.SIGSTOP)
        tasks = [asyncio.create_task(broker.publish("publish", [text])) for text in texts]
        tasks.append(asyncio.create_task(produce(broker)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for number, task in enumerate(tasks):
            if number % 5 == 0:
                await asyncio.sleep(0.01)
            task.cancel()
        closing = asyncio.create_task(broker.close())
        done, _ = await asyncio.wait([closing], timeout=0.2)
        assert not done
        process.send_signal(signal.SIGCONT)
        await asyncio.wait(tasks)
        await closing
        async with stafeta.connect_async(place, timeout=PATIENCE) as another:
            for topic in ("publish", "producer"):
                found: list[Any] = (await another.read(topic)).column("payload").to_pylist()
                assert sorted(map(int, found)) == list(range(20)), topic

    keep = ("--set", 'topics."#".keep=1000000000 messages')
    with BrokerProcess(tmp_path / "data", *keep, doors=("flight",)) as process:
        asyncio.run(main(process))


@on_a_loop
async def test_a_transaction_that_is_cancelled_anywhere_is_there_whole_and_once_or_not_at_all(
    place: Place, topic: str, name: str
) -> None:
    async def transact(number: int) -> None:
        async with broker.transaction(name) as transaction:
            for part in range(2):
                await transaction.write(f"{topic}/{part}", [f"{number}"] * 3)

    async with stafeta.connect_async(address(place)) as broker:
        for steps in range(0, 300, 12):
            number = 0 if (last := await broker.committed(name)) is None else last + 1
            task = asyncio.create_task(transact(number))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        last = await broker.committed(name)
        await transact(0 if last is None else last + 1)
        last = await broker.committed(name)
        assert last is not None
        for part in range(2):
            found: list[Any] = (await broker.read(f"{topic}/{part}")).column("payload").to_pylist()
            assert found == [b"%d" % number for number in range(last + 1) for _ in range(3)]


# --- the same as the others


@on_a_loop
async def test_publishing_and_reading(place: Place, topic: str) -> None:
    broker = await stafeta.connect_async(address(place))
    assert await broker.publish(topic, ["a", "b"]) == Published(1, 2, 2)
    assert await broker.publish(None, pa.table({"topic": [topic], "payload": ["c"]})) == Published(3, 3, 1)
    table = await broker.read(topic, columns=["payload"], start=2)
    assert table.to_pydict() == {"payload": [b"b", b"c"]}
    assert [batch.num_rows async for batch in broker.batches(topic, limit=1)] == [1]
    assert [one.rows for one in await broker.topics(topic)] == [3]
    assert (await broker.stats())["version"] == stafeta.__version__
    assert topic not in {one.filter for one in await broker.subscriptions()}
    await broker.close()
    await broker.close()


@on_a_loop
async def test_producing_and_subscribing(place: Place, topic: str, name: str) -> None:
    async def slowly() -> AsyncIterator[str]:
        for number in range(5):
            await asyncio.sleep(0)
            yield f"slow {number}"

    total = 30_006
    async with stafeta.connect_async(address(place)) as broker:
        async with (
            broker.subscribe(f"{topic}/#", name=name) as subscription,
            broker.producer(f"{topic}/x", name=name, max_memory=100_000, batch_rows=1000) as producer,
        ):
            assert producer.count == 0
            await producer.send("first")
            await producer.send_many(slowly())
            for number in range(10_000):
                await producer.send(str(number))
            await producer.send_many(map(str, range(10_000)))
            await producer.write(pa.table({"payload": list(map(str, range(10_000)))}))
            await producer.flush()
            assert producer.sent == producer.acknowledged == producer.count == total
            found = 0
            async for batch in subscription:
                found += len(batch)
                batch.ack()
                if found == total:
                    break
            await subscription.flush()
        async with broker.subscribe(f"{topic}/#", name=name, follow=False) as subscription:
            assert [batch async for batch in subscription] == []
        await broker.unsubscribe(f"{topic}/#", name=name)


@on_a_loop
async def test_durable_subscriptions_without_reading(place: Place, topic: str, name: str) -> None:
    async with stafeta.connect_async(address(place)) as broker:
        await broker.hold(f"{topic}/#", name=name)
        await broker.publish(f"{topic}/a", ["1", "2", "3"])
        assert await broker.cursors(f"{topic}/#", name=name) == {f"{topic}/a": 1}
        await broker.acknowledge(f"{topic}/#", {f"{topic}/a": 3}, name=name)
        assert await broker.cursors(f"{topic}/#", name=name) == {f"{topic}/a": 3}
        assert (await broker.describe({"topic": f"{topic}/a"})).total_records == 3


@on_a_loop
async def test_transactions(place: Place, topic: str, name: str) -> None:
    async with stafeta.connect_async(address(place)) as broker:
        async with broker.transaction(name) as transaction:
            assert await transaction.write(topic, ["a", "b"]) == 2
            assert await transaction.write(f"{topic}/other", ["c"], part="two") == 1
            assert await broker.topics(f"{topic}/#") == []
        assert [one.rows for one in await broker.topics(f"{topic}/#")] == [2, 1]
        with suppress(ZeroDivisionError):
            async with broker.transaction(name) as second:
                await second.write(topic, ["never"])
                raise ZeroDivisionError
        assert (await broker.topics(topic))[0].rows == 2
        assert second.counter == transaction.counter + 1
        assert await broker.transaction(name, counter=transaction.counter).commit() is False


def test_many_tasks_over_a_restart(tmp_path: Path) -> None:
    async def main(process: BrokerProcess) -> list[int]:
        async with stafeta.connect_async(address(process.door("flight")), timeout=PATIENCE) as broker:
            tasks = [asyncio.create_task(broker.publish("t", [str(number)])) for number in range(50)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(process.restart)
            await asyncio.gather(*tasks)
            payloads: list[Any] = (await broker.read("t")).column("payload").to_pylist()
            return sorted(map(int, payloads))

    with BrokerProcess(tmp_path / "data", "--set", 'topics."#".keep=36500d', doors=("flight",)) as process:
        assert asyncio.run(main(process)) == list(range(50))
