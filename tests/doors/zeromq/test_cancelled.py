"""Calls of the asyncio client that are cancelled anywhere: nothing is lost, nothing comes twice, the client goes on."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from itertools import chain, count, cycle
from typing import Any

from stafeta import AsyncClient
from tests.brokers import BrokerProcess

MESSAGES = 60


async def cut_off(call: Coroutine[Any, Any, Any], steps: int) -> bool:
    """Cancels a call after so many steps of the loop, or lets it end; whether it has."""
    task = asyncio.create_task(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
        return True
    return False


def doubling() -> Iterator[int]:
    return chain([0], (2**number for number in count()))


def test_a_put_that_is_cancelled_is_stored_once_or_not_taken(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        steps = cycle([0, 1, 2, 3, 5, 9, 200])
        async with AsyncClient(lasting.address) as client:
            await client.subscribe(topic)
            for number in range(MESSAGES):
                while await client.count(topic) == number:
                    await cut_off(client.put(topic, str(number)), next(steps))
            await client.flush()
            found = await client.get_many(topic)
            assert [message.text for message in found] == [str(number) for number in range(MESSAGES)]
            assert [message.id for message in found] == list(range(1, MESSAGES + 1))

    asyncio.run(main())


def test_what_else_is_cancelled_can_be_asked_for_again(lasting: BrokerProcess, topic: str) -> None:
    async def main() -> None:
        async with AsyncClient(lasting.address) as client:
            steps = doubling()
            while not await cut_off(client.subscribe(topic), next(steps)):
                pass
            await client.put_many(topic, map(str, range(MESSAGES)))
            for number in range(MESSAGES):
                message = await client.get(topic)
                assert message is not None
                assert message.text == str(number)
                for turn in range(3):
                    await cut_off(client.get(topic), turn)
                # One that was cut off may have acknowledged it.
                steps = doubling()
                while (now := await client.get(topic)) is not None and now.id == message.id:
                    await cut_off(client.ack(message), next(steps))
            assert await client.get(topic) is None
            steps = doubling()
            while not await cut_off(client.unsubscribe(topic), next(steps)):
                await client.subscribe(topic)

    asyncio.run(main())
