"""What a page about the whole broker shows, sampled once a second and written once for all who watch.

1. Counters are read each second, always: they are plain numbers, and whoever opens the page sees the last minutes.
2. Lag, files and jobs cost more. They are looked at only while somebody watches, by the same passes that a scrape uses.
3. A subscription is stalled if it is behind, and the oldest message that it waits for has been the same for a while.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from stafeta import __version__
from stafeta.broker import Broker
from stafeta.broker.lag import Slow
from stafeta.broker.overview import Figures
from stafeta.errors import StafetaError
from stafeta.histogram import Histogram
from stafeta.metrics.jobs import Jobs
from stafeta.names import owner_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stafeta.doors.figures import MeasuredDoor
    from stafeta.store.port import Usage

INTERVAL: Final = 1.0  # seconds
HISTORY: Final = 300  # samples of the rates
TREND: Final = 120  # samples of a subscription's lag
STALLED: Final = 10.0  # seconds for which the oldest message has to be the same
FORGOTTEN: Final = 30.0  # seconds after which one that is not among the slowest has no trend any more
FILES: Final = 5.0  # seconds between two looks at the files
INTEREST: Final = 30.0  # seconds for which lag is looked at after somebody has asked

RATES: Final = (
    "published",
    "delivered",
    "acknowledged",
    "redelivered",
    "duplicates",
    "collected",
    "commits",
    "commit_bytes",
)


class Rates(NamedTuple):
    """Of one interval: what was done a second, and how long a commit took on average, in milliseconds."""

    time: float  # seconds since 1970
    values: tuple[float, ...]  # in the order of RATES
    commit: float | None
    sync: float | None


class _Trend:
    """How a subscription's lag went."""

    __slots__ = ("head", "seconds", "seen", "since")

    def __init__(self, now: float, head: float | None) -> None:
        self.head = head  # when its oldest message was published
        self.since = now  # it is the same
        self.seen = now
        self.seconds: deque[float | None] = deque(maxlen=TREND)

    def add(self, now: float, wall: float, slow: Slow) -> None:
        head = None if slow.seconds is None else wall - slow.seconds
        if head is None or self.head is None or abs(head - self.head) > 0.5:
            self.head, self.since = head, now
        self.seen = now
        self.seconds.append(None if slow.seconds is None else round(slow.seconds, 1))


class Overview:
    def __init__(self, broker: Broker, doors: "Sequence[MeasuredDoor]") -> None:
        self._broker = broker
        self._doors = doors
        self._jobs = Jobs(broker)
        self._loop = asyncio.get_running_loop()
        self._history: deque[Rates] = deque(maxlen=HISTORY)
        self._trends: dict[tuple[str, str], _Trend] = {}
        self._before: tuple[float, Figures] | None = None
        self._usage: tuple[float, Usage] | None = None
        self._asked = -INTEREST
        self._sample: bytes = b""
        self._made: asyncio.Future[bytes | None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._wake()

    # --- for those who watch

    async def current(self) -> bytes:
        """The newest sample, as JSON. Whoever asks after a while waits for one."""
        if self._loop.time() - self._asked > 2 * INTERVAL or not self._sample:
            return await self.following() or b"{}"
        self._asked = self._loop.time()
        return self._sample

    async def following(self) -> bytes | None:
        """The next sample; None where there are no more."""
        if self._closed:
            return None
        self._asked = self._loop.time()
        return await asyncio.shield(self._made)

    def history(self) -> bytes:
        """The rates of the last minutes, by columns."""
        columns: dict[str, list[Any]] = {"time": [one.time for one in self._history]}
        for at, name in enumerate(RATES):
            columns[name] = [one.values[at] for one in self._history]
        columns["commit_ms"] = [one.commit for one in self._history]
        columns["sync_ms"] = [one.sync for one in self._history]
        return orjson.dumps(columns)

    # --- sampling

    async def _run(self) -> None:
        due = self._loop.time()
        while True:
            rates = self._count()
            if self._loop.time() - self._asked < INTEREST:
                try:
                    self._sample = orjson.dumps(await self._look(rates))
                except StafetaError:  # the store is being closed
                    return
            self._wake()
            due = max(due + INTERVAL, self._loop.time())
            await asyncio.sleep(due - self._loop.time())

    def _wake(self) -> None:
        made, self._made = self._made, self._loop.create_future()
        if not made.done():
            made.set_result(None if self._closed else self._sample)

    def _count(self) -> Rates:
        now, figures = self._loop.time(), self._broker.figures()
        then, before = self._before or (now - INTERVAL, figures)
        self._before = now, figures
        passed = max(now - then, 1e-6)
        values = [
            round((after - was) / passed, 2)
            for after, was in zip(_counters(figures), _counters(before), strict=True)
        ]
        rates = Rates(
            round(self._broker.now() / 1_000_000, 3),
            tuple(values),
            _mean(figures.totals.commit_seconds, before.totals.commit_seconds),
            _mean(figures.sync_seconds, before.sync_seconds),
        )
        self._history.append(rates)
        return rates

    async def _look(self, rates: Rates) -> dict[str, Any]:
        broker = self._broker
        lag = await broker.lag()
        usage = await self._files()
        jobs = await self._jobs.figures()
        figures = broker.figures()
        now = broker.now()
        return {
            "version": __version__,
            "time": rates.time,
            "rates": dict(zip(RATES, rates.values, strict=True)),
            "commit_ms": rates.commit,
            "sync_ms": rates.sync,
            "totals": {
                "topics": figures.stats.topics,
                "subscriptions": figures.stats.subscriptions,
                "clients": figures.stats.clients,
                "sessions": figures.sessions,
                "messages": figures.stats.messages,
                "position": figures.stats.position,
                "uptime": figures.stats.uptime,
                "pending": figures.stats.pending,
                "failed_commits": figures.totals.failed_commits,
            },
            "refusing": figures.refusing,
            "held": figures.held,
            "lag": {
                "subscriptions": lag.subscriptions,
                "messages": lag.messages,
                "seconds": round(lag.most_seconds, 1),
                "unknown": lag.unknown,
                # With many subscriptions it was looked at some seconds ago.
                "slowest": self._slowest(lag.slowest, now / 1_000_000 - (self._loop.time() - lag.made)),
            },
            "doors": [
                {
                    "door": one.door,
                    "connections": one.connections,
                    "accepted": one.accepted,
                    "rejected": sum(one.rejected.values()),
                    "dropped": sum(one.dropped.values()),
                }
                for one in (door.figures() for door in self._doors)
            ],
            "store": {**usage._asdict(), "tail": figures.tail},
            "jobs": [
                {
                    "job": report.job,
                    "state": report.state,
                    "lag": report.lag,
                    "rows_per_second": report.rows_per_second,
                    "restarts": report.restarts,
                    "age": round(max(now - time, 0) / 1_000_000, 1),
                }
                for report, time in jobs
            ],
        }

    async def _files(self) -> "Usage":
        now = self._loop.time()
        if self._usage is None or now - self._usage[0] >= FILES:
            self._usage = now, await self._broker.usage()
        return self._usage[1]

    def _slowest(self, slowest: "Sequence[Slow]", wall: float) -> list[dict[str, Any]]:
        """`wall` is when they were looked at."""
        now = self._loop.time()
        found = []
        for slow in slowest:
            key = slow.client, slow.filter
            trend = self._trends.get(key)
            if trend is None:
                trend = self._trends[key] = _Trend(now, None if slow.seconds is None else wall - slow.seconds)
            trend.add(now, wall, slow)
            user, client = owner_of(slow.client)
            found.append(
                {
                    "name": client,
                    "user": user or None,
                    "filter": slow.filter,
                    "behind": slow.messages,
                    "seconds": None if slow.seconds is None else round(slow.seconds, 1),
                    "connected": self._connected(slow),
                    "stalled": now - trend.since >= STALLED,
                    "trend": list(trend.seconds),
                }
            )
        for key in [key for key, one in self._trends.items() if now - one.seen > FORGOTTEN]:
            del self._trends[key]
        return found

    def _connected(self, slow: Slow) -> bool:
        broker = self._broker
        subscription = broker.clients.get(slow.client, {}).get(slow.filter)
        return slow.client in broker.sessions or bool(subscription is not None and subscription.watchers)


def _counters(figures: Figures) -> tuple[float, ...]:
    totals = figures.totals
    return (
        figures.stats.messages,
        totals.delivered,
        totals.acknowledged,
        totals.redelivered,
        totals.duplicates,
        totals.collected,
        totals.commit_seconds.total,
        totals.commit_bytes,
    )


def _mean(after: Histogram, before: Histogram) -> float | None:
    """The mean of what was added, in milliseconds; None where nothing was."""
    count = after.total - before.total
    return round((after.sum - before.sum) / count * 1000, 3) if count else None
