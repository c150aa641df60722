"""What the broker has to do, and who waits for what: for people who look after it."""

import asyncio
import math
import time
from bisect import bisect_right
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from stafeta.broker.counts import Counts
from stafeta.broker.lag import Head
from stafeta.broker.portions import PORTION, in_portions
from stafeta.broker.topic import Subscription, Topic

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker
    from stafeta.histogram import Histogram
    from stafeta.store.port import Store

LOOKS = 5000  # messages whose ages one list tells
READS = (
    1000  # of them that are read from the log for a list of who is furthest behind; the next one reads others
)
MOST_KNOWN = 4 * LOOKS
FEW = 10  # cursors that are looked at in one step


class Stats(NamedTuple):
    topics: int
    subscriptions: int
    clients: int  # that have subscriptions
    messages: int  # published since the start
    position: int  # that of the next message
    pending: int  # bytes that are not on disk yet
    uptime: float  # seconds


class Figures(NamedTuple):
    """What is known at once, for those who watch the broker."""

    stats: Stats
    totals: Counts
    sync_seconds: "Histogram"
    sessions: int  # clients that are connected by their names
    producers: int  # that are remembered, once for each topic
    tail: int  # bytes of messages that are in memory
    refusing: bool  # the last commits have failed
    held: bool  # nothing is collected: something is damaged, and it is not known who waits for what


class ClientLine(NamedTuple):
    client: str
    subscriptions: int
    connected: bool  # or it waits for messages just now
    behind: int  # messages


class SubscriptionLine(NamedTuple):
    client: str
    filter: str
    durable: bool
    connected: bool
    topics: int
    behind: int  # messages
    seconds: float  # the age of the oldest of them


def stats(broker: "Broker") -> Stats:
    return Stats(
        broker.registry.existing,
        broker.registry.subscriptions,
        len(broker.clients),
        broker.visible_position - broker.began,
        broker.visible_position,
        broker.commits.size,
        round(time.monotonic() - broker.started, 3),
    )


def figures(broker: "Broker", store: "Store") -> Figures:
    totals = broker.totals
    return Figures(
        stats(broker),
        replace(
            totals, commit_messages=totals.commit_messages.copy(), commit_seconds=totals.commit_seconds.copy()
        ),
        store.sync_seconds.copy(),
        len(broker.sessions),
        broker.registry.producers,
        broker.log.size,
        broker.commits.failures > 0,
        broker.collector.held,
    )


async def clients(
    broker: "Broker", after: str, limit: int, shown: Callable[[str], bool] = lambda client: True
) -> list[ClientLine]:
    """The clients that have subscriptions, or are connected by their names."""
    found: list[ClientLine] = []
    async for name in _names(filter(shown, {*broker.clients, *broker.sessions}), after):
        subscriptions = list(broker.clients.get(name, {}).values())
        behind = sum([await _behind(one) for one in subscriptions])
        connected = name in broker.sessions or any(one.watchers for one in subscriptions)
        found.append(ClientLine(name, len(subscriptions), connected, behind))
        if len(found) == limit:
            break
    return found


async def subscriptions(
    broker: "Broker",
    after: tuple[str, str],
    limit: int,
    wanted: str = "",
    shown: Callable[[str], bool] = lambda client: True,
    *,
    search: str = "",
) -> list[SubscriptionLine]:
    """The subscriptions, by client and filter. `wanted` is a topic that they match, or a filter as it was subscribed
    to, `search` a text in client or filter, in small letters; all where these are empty. Where many looks into the log
    are needed they are fewer than `limit`, and there are no more when there are none."""
    found: list[SubscriptionLine] = []
    ages = Ages(broker)
    async for name in _names(filter(shown, broker.clients), after[0], included=True):
        for filter_, one in sorted(broker.clients.get(name, {}).items()):
            if (name, filter_) <= after or not _is_wanted(one, wanted, search):
                continue
            behind = await _behind(one)
            seconds = await ages.of(one) if behind else 0.0
            found.append(await _line(broker, one, behind, seconds))
            if len(found) == limit or ages.looks >= LOOKS:
                return found
    return found


async def lagging(
    broker: "Broker",
    limit: int,
    shown: Callable[[str], bool] = lambda client: True,
    *,
    by_age: bool = False,
    wanted: str = "",
    search: str = "",
) -> list[SubscriptionLine]:
    """The subscriptions that are furthest behind: by messages, or by the age of the oldest. Where many are, ages are
    looked up for those with the most messages, and not for all of them at once: others have 0 seconds meanwhile."""
    topic = broker.topics.get(wanted)
    if topic is None:
        known = [one for name, filters in broker.clients.items() if shown(name) for one in filters.values()]
    else:
        known = [one for one in broker.subscribers_of(topic) if shown(one.client)]
    found = [
        (_behind_on(one, one.cursors) if len(one.cursors) <= FEW else await _behind(one), one)
        async for one in in_portions(known)
        if _is_wanted(one, wanted, search)
    ]
    top = nlargest(max(limit, LOOKS) if by_age else limit, found, key=itemgetter(0))
    ages, lines = Ages(broker, ChainMap(broker.known_times, broker.lag_sampler.times), READS), []
    for behind, one in top:
        seconds = await ages.of(one) if behind and ages.looks < LOOKS else 0.0
        lines.append((seconds, behind, one))
    times = broker.known_times  # lists of others, or of fewer, are asked for in between
    broker.known_times = ages.times if len(times) > MOST_KNOWN else times | ages.times
    if by_age:
        lines = nlargest(limit, lines, key=itemgetter(0, 1))
    return [await _line(broker, one, behind, seconds) for seconds, behind, one in lines]


async def _line(broker: "Broker", one: Subscription, behind: int, seconds: float) -> SubscriptionLine:
    connected = one.client in broker.sessions or bool(one.watchers)
    topics = await broker.registry.count(one)
    return SubscriptionLine(one.client, one.filter, one.durable, connected, topics, behind, seconds)


async def _names(known: Iterable[str], after: str, *, included: bool = False) -> AsyncIterator[str]:
    names = await asyncio.to_thread(sorted, list(known))
    start = bisect_right(names, after)
    for number, name in enumerate(names[start - (included and start > 0 and names[start - 1] == after) :], 1):
        yield name
        if number % PORTION == 0:
            await asyncio.sleep(0)


def _is_wanted(subscription: Subscription, wanted: str, search: str) -> bool:
    if search and search not in f"{subscription.client} {subscription.filter}".lower():
        return False
    return wanted in ("", subscription.filter) or subscription.covers(wanted)


async def _behind(subscription: Subscription) -> int:
    """How many messages it has not acknowledged."""
    total = 0
    async for topic in in_portions(list(subscription.cursors)):
        total += _behind_on(subscription, (topic,))
    return total


def _behind_on(subscription: Subscription, topics: Iterable[Topic]) -> int:
    """The same, of some topics."""
    if subscription.away:
        return 0
    total = 0
    for topic in topics:
        cursor = subscription.cursors.get(topic)
        if cursor is None or cursor.floor >= topic.visible:
            continue
        first = topic.first
        behind = topic.visible - max(cursor.floor, first)
        if cursor.gaps:
            behind -= sum([stop - max(start, first) for start, stop in cursor.above if stop > first])
        total += max(behind, 0)
    return total


class Ages:
    """How old messages are, which have to be looked up in the log for that, each once. `known` is what others have
    looked up: those that stand still are the slow ones, and are asked for again and again. No more than `most` are read
    from the log."""

    def __init__(
        self, broker: "Broker", known: Mapping[Head, int] | None = None, most: float = math.inf
    ) -> None:
        self._broker = broker
        self._known = known or {}
        self._left = most
        self._times: dict[Head, int] = {}
        self._now = broker.now()

    @property
    def times(self) -> dict[Head, int]:
        """When the messages were published; not those that cannot be read."""
        return {head: time for head, time in self._times.items() if time < self._now}

    @property
    def looks(self) -> int:
        return len(self._times)

    async def of(self, subscription: Subscription) -> float:
        """Seconds since the oldest message was published that it has not acknowledged; of many topics those that it
        matched first are looked at."""
        oldest = self._now
        async for topic in in_portions(list(islice(subscription.cursors, LOOKS))):
            cursor = subscription.cursors.get(topic)
            span = None if cursor is None else cursor.next_pending(topic.first, topic.visible)
            if span is not None:
                oldest = min(oldest, await self._time(topic, span[0]))
        return (self._now - oldest) / 1_000_000

    async def _time(self, topic: Topic, offset: int) -> int:
        head = topic, offset
        time = self._times.get(head)
        if time is None:
            time = self._known.get(head)
            if time is None:
                if self._left < 1:
                    return self._now  # it is not known yet
                self._left -= 1
                time = await self._broker.lag_sampler.time_of(topic, offset, self._now)
                await asyncio.sleep(0)
            self._times[head] = time
        return time
