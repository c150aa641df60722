"""How far durable subscriptions are behind, all together and the slowest by name, in messages and in seconds.

1. A pass looks at every durable subscription and each of its cursors, a portion of them in a turn of the loop.
2. Where that is little work, whoever asks has a pass made, and waits for it a moment. Where it is much, he gets the
   result of the last one, and passes are made in the background for as long as somebody asks now and then.
3. How old the oldest message is that a subscription waits for stands in the log. Such times are kept from pass to pass,
   and a pass reads a limited number of others: first of those who are where they were at the last pass, since these
   are the slow ones. Of how many subscriptions it is not known yet, the result says.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import nlargest
from itertools import accumulate, chain, islice
from operator import attrgetter
from time import thread_time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stafeta.broker import portions
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import StafetaError
from stafeta.message import TIME

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker
    from stafeta.store.port import Store

LITTLE: Final = 2000  # cursors of all subscriptions together
LOOK_COST: Final = 20  # cursors that a look into the log counts for
SMALLER: Final = 4  # times, than other portions: nobody waits for this
INTERVAL: Final = 5.0  # seconds between two passes in the background
PACE: Final = 10_000  # cursors for each of which there is a second more between them
SHARE: Final = 0.02  # of a processor that they take at most, on a machine on which they take long
LONGEST: Final = 60.0  # seconds between two, all the same
INTEREST: Final = 60.0  # seconds for which they go on after somebody has asked
WAIT: Final = 0.05  # seconds for a pass that is little work; with other work on the loop it may take longer
LOOKS: Final = 1000  # into the log, for one pass
CANDIDATES: Final = 2 * LOOKS  # messages of which one pass remembers that their times are not known
SLOWEST: Final = 10  # subscriptions that are named
OVER_MESSAGES: Final = (0, 100, 10_000, 1_000_000)
OVER_SECONDS: Final = (1, 10, 60, 600, 3600, 86_400)
_SPREAD: Final = 7919  # passes begin at different clients, so that each has its turn to be looked up

Head: TypeAlias = tuple[
    Topic, int
]  # the first message of a topic that a subscription waits for, by its offset
_BASE = attrgetter("base")


class Slow(NamedTuple):
    """A subscription that is behind."""

    client: str
    filter: str
    messages: int
    seconds: float | None  # the age of the oldest of them; None where it is not known yet


class Lag(NamedTuple):
    """Of durable subscriptions."""

    subscriptions: int = 0
    messages: int = 0  # that they are behind, together
    most_messages: int = 0
    seconds: float = 0.0  # together
    most_seconds: float = 0.0
    unknown: int = 0  # subscriptions that are behind, it is not known for how long
    over_messages: tuple[int, ...] = (0,) * len(OVER_MESSAGES)  # how many are further behind than each
    over_seconds: tuple[int, ...] = (0,) * len(OVER_SECONDS)
    slowest: tuple[Slow, ...] = ()  # those that are behind for the longest time, and by the most messages
    work: int = 0  # that it took, in cursors
    made: float = 0.0  # when, by the clock of the loop


class LagSampler:
    def __init__(self, broker: "Broker", store: "Store") -> None:
        self._broker = broker
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._last: Lag | None = None
        self._pass: asyncio.Task[Lag] | None = None
        self._background: asyncio.Task[None] | None = None
        self._asked = 0.0
        self.cost = 0.0  # seconds of the processor that the last pass took
        self._passes = 0
        self._clients: list[str] = []  # all there are, and some that there were
        self._listed = (-1, 0)  # the last subscription, and how many there were, when they were listed
        self.times: dict[Head, int] = {}  # when the messages were published
        self._unmoved: set[Head] = set()  # those of the last pass that were not looked up

    async def lag(self) -> Lag:
        """As of now, or of a few seconds ago where there is much to look at."""
        last = self._last
        if last is None:
            return await asyncio.shield(self._shared_pass())
        if max(last.work, self._broker.registry.subscriptions) <= LITTLE:
            await asyncio.wait([self._shared_pass()], timeout=WAIT)
            return self._last or last
        self._asked = self._loop.time()
        if self._background is None:
            self._background = self._loop.create_task(self._go_on())
        return last

    async def stop(self) -> None:
        tasks = [task for task in (self._background, self._pass) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _go_on(self) -> None:
        try:
            while self._loop.time() - self._asked < INTEREST:
                await asyncio.wait([self._shared_pass()])
                await asyncio.sleep(self.pause)
        finally:
            self._background = None

    @property
    def pause(self) -> float:
        """Seconds until the next pass in the background."""
        work = 0 if self._last is None else self._last.work
        return max(INTERVAL + work / PACE, min(self.cost / SHARE, LONGEST))

    def _shared_pass(self) -> "asyncio.Task[Lag]":
        """Whoever asks while one is made gets its result."""
        if self._pass is None or self._pass.done():
            self._pass = self._loop.create_task(self._make())
        return self._pass

    async def _make(self) -> Lag:
        sample = _Sample(self._broker.now(), self.times)
        took = await _in_turns(self._look(sample))
        cursors = sample.work
        await self._look_up(sample)
        took += await _in_turns(sample.settle())
        self.cost = took * sample.work / max(cursors, 1)
        self.times, self._unmoved = sample.times, sample.unmoved
        self._last = sample.result(self._loop.time())
        return self._last

    def _look(self, sample: "_Sample") -> Iterator[None]:
        """A step is one cursor, or one subscription or client without any."""
        registry = self._broker.registry
        clients = registry.clients
        now = registry.last_subscription, registry.subscriptions
        if self._listed != now:  # to list very many takes its time, all at once
            self._listed, self._clients = now, list(clients)
        names = self._clients
        first = self._passes * _SPREAD
        self._passes += 1
        for at in range(first, first + len(names)):
            name = names[at % len(names)]
            yield
            for subscription in list(clients.get(name, {}).values()):
                if not subscription.durable:
                    yield
                    continue
                found = _Found(subscription, sample.now)
                # What is committed between two steps may be seen of one topic, and not of another.
                for topic in list(subscription.cursors):
                    yield
                    cursor = subscription.cursors.get(topic)
                    if cursor is None or cursor.floor >= topic.visible:
                        continue
                    if not cursor.gaps:
                        head = max(cursor.floor, topic.first)
                        found.behind += topic.visible - head
                    elif (span := cursor.next_pending(topic.first, topic.visible)) is not None:
                        head = span[0]
                        found.behind += topic.visible - head - cursor.done_from(span[1])
                    else:
                        continue
                    sample.date(found, topic, head)
                sample.add(found)

    async def _look_up(self, sample: "_Sample") -> None:
        heads = dict.fromkeys(head for found in sample.unsettled for head in found.missing or ())
        slow = self._unmoved
        for topic, offset in islice(
            chain([h for h in heads if h in slow], [h for h in heads if h not in slow]), LOOKS
        ):
            sample.work += LOOK_COST
            sample.times[topic, offset] = await self.time_of(topic, offset, sample.now)
            await asyncio.sleep(0)

    async def time_of(self, topic: Topic, offset: int, now: int) -> int:
        """When a message was published. It is not taken into memory for that, as one is that somebody reads."""
        tail = topic.tail
        try:
            if tail is not None and tail[0].base <= offset < topic.visible:
                batch = tail[bisect_right(tail, offset, key=_BASE) - 1]
                batches = [batch.cut(offset, offset + 1)]
            else:
                batches = await self._store.read(topic.id, offset, offset + 1, 1)
        except StafetaError:  # it is damaged, or the store is being closed
            return now
        time = batches[0].column(TIME)[0] if batches else None
        return time if isinstance(time, int) else now


async def _in_turns(steps: Iterator[None]) -> float:
    """A portion of them in each turn of the loop. Returns the seconds of the processor that they took."""
    end = object()
    portion = portions.PORTION // SMALLER
    took = 0.0
    while True:
        began = thread_time()
        last = next(islice(steps, portion - 1, portion), end)
        took += thread_time() - began
        if last is end:
            return took
        await asyncio.sleep(0)


class _Found:
    """How far one subscription is behind."""

    __slots__ = ("behind", "complete", "missing", "oldest", "subscription")

    def __init__(self, subscription: Subscription, now: int) -> None:
        self.subscription = subscription
        self.behind = 0  # messages
        self.oldest = now  # the time of the oldest of those whose times are known
        self.missing: list[Head] | None = None  # whose times are to be looked up
        self.complete = True  # there are no others


class _Sample:
    """What one pass has found so far."""

    def __init__(self, now: int, known: dict[Head, int]) -> None:
        self.now = now
        self.times: dict[Head, int] = {}  # those that are still needed
        self.unsettled: list[_Found] = []
        self.unmoved: set[Head] = set()
        self._known = known
        self._candidates = 0
        self._unknown = 0
        self._subscriptions = 0
        self.work = 0
        self._messages = self._most_messages = 0
        self._seconds = self._most_seconds = 0.0
        # By how many of the limits they are over.
        self._over_messages = [0] * (len(OVER_MESSAGES) + 1)
        self._over_seconds = [0] * (len(OVER_SECONDS) + 1)
        self._slow: list[Slow] = []
        self._least_messages, self._least_seconds = 0, -1.0  # of those that are named, once they are enough

    def date(self, found: _Found, topic: Topic, offset: int) -> None:
        """Note when the first message was published that a subscription waits for on a topic."""
        time = self._known.get((topic, offset))
        if time is not None:
            self.times[topic, offset] = time
            found.oldest = min(found.oldest, time)
        elif self._candidates < CANDIDATES:
            self._candidates += 1
            found.missing = found.missing or []
            found.missing.append((topic, offset))
        else:
            found.complete = False

    def add(self, found: _Found) -> None:
        self._subscriptions += 1
        self.work += len(found.subscription.cursors)
        behind = found.behind
        if not behind:
            return
        self._messages += behind
        self._most_messages = max(self._most_messages, behind)
        self._over_messages[bisect_left(OVER_MESSAGES, behind)] += 1
        if found.missing:
            self.unsettled.append(found)
        else:
            self._settle(found)

    def settle(self) -> Iterator[None]:
        """The times are there that are to be had."""
        for found in self.unsettled:
            for head in found.missing or ():
                yield
                time = self.times.get(head)
                if time is None:
                    self.unmoved.add(head)
                    found.complete = False
                else:
                    found.oldest = min(found.oldest, time)
            self._settle(found)

    def _settle(self, found: _Found) -> None:
        client, filter_ = found.subscription.client, found.subscription.filter
        if not found.complete:
            self._unknown += 1
            if found.oldest == self.now:  # not even of a part of it is it known
                self._name(client, filter_, found.behind, None)
                return
        seconds = (self.now - found.oldest) / 1_000_000
        self._seconds += seconds
        self._most_seconds = max(self._most_seconds, seconds)
        self._over_seconds[bisect_left(OVER_SECONDS, seconds)] += 1
        self._name(client, filter_, found.behind, seconds)

    def _name(self, client: str, filter_: str, behind: int, seconds: float | None) -> None:
        if behind <= self._least_messages and (seconds or 0.0) <= self._least_seconds:
            return  # there are enough that are slower
        self._slow.append(Slow(client, filter_, behind, seconds))
        if len(self._slow) >= 100 * SLOWEST:
            self._slow = self._slowest()
            self._least_messages = sorted(one.messages for one in self._slow)[-SLOWEST]
            self._least_seconds = sorted(one.seconds or 0.0 for one in self._slow)[-SLOWEST]

    def _slowest(self) -> list[Slow]:
        """Those by seconds and those by messages, each once."""
        by_seconds = nlargest(SLOWEST, self._slow, key=lambda one: one.seconds or 0.0)
        by_messages = nlargest(SLOWEST, self._slow, key=lambda one: one.messages)
        return list(dict.fromkeys((*by_seconds, *by_messages)))

    def result(self, made: float) -> Lag:
        return Lag(
            self._subscriptions,
            self._messages,
            self._most_messages,
            self._seconds,
            self._most_seconds,
            self._unknown,
            _over(self._over_messages),
            _over(self._over_seconds),
            tuple(self._slowest()),
            self.work,
            made,
        )


def _over(counts: list[int]) -> tuple[int, ...]:
    """How many are over each limit, of how many are over so many limits."""
    return tuple(accumulate(reversed(counts[1:])))[::-1]
