"""Users for the tests of checked verbs, and what they are given."""

import asyncio
from typing import Any

from stafeta.broker import Broker, Limits
from stafeta.broker.guarded import GuardedBroker
from stafeta.security import Principal, Security, User, Users
from stafeta.security.rules import Rule
from stafeta.testing.memory import MemoryStore


def user(*allow: str, deny: tuple[str, ...] = (), **more: Any) -> User:
    return User(allow=tuple(map(Rule.read, allow)), deny=tuple(map(Rule.read, deny)), **more)


ADMIN = user("all #", "all $sys/#", pipeline=True)
USERS = Users(
    {
        "admin": ADMIN,
        "ann": user("all a/#", "consume rollup/#", "consume alerts/#", "consume dead/#"),
        "bob": user("all b/#", "consume a/shared"),
        "nobody": User(),
        "home": user("publish home/%u/%c", "consume home/%u/#"),
    }
)


async def opened(
    users: Users = USERS, store: MemoryStore | None = None, limits: Limits | None = None, filters: str = "cut"
) -> Broker:
    return await Broker.open(store or MemoryStore(), limits, security=Security(users, filters))


def verbs(broker: Broker, name: str, client: str = "") -> GuardedBroker:
    found = broker.for_principal(Principal(name, client, "test", "10.0.0.1:1"))
    assert isinstance(found, GuardedBroker)
    return found


def texts(batches: list[Any]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.payloads]


async def taken(consumer: Any) -> list[bytes]:
    while consumer.joining:  # noqa: ASYNC110 - there is nothing else to wait for
        await asyncio.sleep(0)
    return texts(consumer.take(1 << 20) or await consumer.read(1 << 20))
