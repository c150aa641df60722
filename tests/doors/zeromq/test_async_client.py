"""What only the asyncio client has to show. (The rest it shares with the plain one.)"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from stafeta import AsyncClient, Client
from stafeta.clients.zeromq.client import ClientClosed
from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE


def test_a_client_goes_on_after_a_wait_was_cancelled(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        async with AsyncClient(lasting.address) as client:
            await client.subscribe(topic)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.get(topic, wait=30)
            assert await client.put(topic, "x") == 1
            message = await client.get(topic)
            assert message is not None
            assert message.text == "x"

    asyncio.run(main())


def test_a_cancelled_put_many_is_kept_and_goes_out_once(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        async with AsyncClient(lasting.address) as client:
            await client.subscribe(topic)
            taken = 0

            async def endless() -> AsyncIterator[str]:
                nonlocal taken
                while True:
                    yield str(taken)
                    taken += 1

            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.put_many(topic, endless())
            kept = await client.count(topic)
            assert 0 < kept <= taken + 1
            assert await client.put(topic, "last") == kept + 1
            found: list[str] = []
            while batch := await client.get_many(topic):
                await client.ack(batch)
                found += [message.text for message in batch]
            assert found == [*map(str, range(kept)), "last"]

    asyncio.run(main())


def test_tasks_share_a_client(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        async with AsyncClient(lasting.address) as client:
            await client.subscribe(topic)
            ids = await asyncio.gather(*(client.put(topic, str(number)) for number in range(50)))
            assert ids == list(range(1, 51))

    asyncio.run(main())


def test_what_a_client_gets_it_can_put_at_once(lasting: BrokerProcess, topic: str) -> None:
    source, target = f"{topic}/source", f"{topic}/target"

    async def main() -> None:
        async with AsyncClient(lasting.address) as client:
            await client.subscribe(source)
            await client.subscribe(target)
            await client.put_many(source, map(str, range(3000)))

            async def passed_on() -> AsyncIterator[bytes]:
                while batch := await client.get_many(source, 500):
                    for message in batch:
                        yield message.data
                    await client.ack(batch)

            assert (await client.put_many(target, passed_on())).total == 3000

    asyncio.run(main())
    with Client(lasting.address) as client:
        client.subscribe(source)
        client.subscribe(target)
        client.put_many(source, map(str, range(3000)))
        data = (message.data for message in client.get_many(source))
        assert client.put_many(target, data).first == 3001


def test_messages_follows_while_others_put(lasting: BrokerProcess, topic: str) -> None:
    async def follow(client: AsyncClient) -> list[str]:
        seen = []
        async for message in client.messages(topic):
            seen.append(message.text)
            if len(seen) == 100:
                break
        return seen

    async def main() -> None:
        async with AsyncClient(lasting.address) as reader, AsyncClient(lasting.address) as writer:
            await reader.subscribe(topic)
            following = asyncio.create_task(follow(reader))
            for number in range(100):
                await writer.put(topic, str(number))
            assert await following == [str(number) for number in range(100)]

    asyncio.run(main())


def test_what_waits_ends_when_the_client_is_closed(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        client = AsyncClient(lasting.address)
        await client.subscribe(topic)
        calls: list[Coroutine[Any, Any, Any]] = [client.get(topic, wait=PATIENCE) for _ in range(2)]
        waiting = [asyncio.create_task(call) for call in (*calls, client.put_many(topic, endless()))]
        await asyncio.sleep(0.1)
        await client.close()
        await client.close()
        for one in waiting:
            with pytest.raises(ClientClosed, match="has been closed; make a new one"):
                await one
        nobody = AsyncClient("tcp://127.0.0.1:1", retries=1000)  # where there is no connection to wait for
        putting = asyncio.create_task(nobody.put(topic, "x"))
        await asyncio.sleep(0.1)
        await nobody.close()
        with pytest.raises(ClientClosed):
            await putting

    async def endless() -> AsyncIterator[str]:
        while True:
            yield "x"

    asyncio.run(main())


def test_a_closed_client_says_so(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        client = AsyncClient(lasting.address)
        assert await client.subscribe(topic) == 0
        await client.close()
        with pytest.raises(ClientClosed):
            await client.get(topic)

    asyncio.run(main())
