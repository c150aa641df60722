"""What the dashboard is shown: sampled once for all, with the trend of who is behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stafeta.broker import Broker, lag
from stafeta.broker.lag import Slow
from stafeta.metrics import Overview, overview
from stafeta.metrics.overview import RATES, STALLED, _Trend
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run
from tests.broker.test_consumer import publish
from tests.metrics.test_scrape import Door
from tests.waiting import PATIENCE


@asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, Overview]]:
    monkeypatch.setattr(overview, "INTERVAL", 0.01)
    broker = await Broker.open(MemoryStore())
    found = Overview(broker, [Door()])
    found.start()
    try:
        yield broker, found
    finally:
        found.close()
        await broker.close()


async def sample(found: Overview) -> Any:
    data = await found.following()
    assert data is not None
    return json.loads(data)


def test_a_sample_has_rates_and_who_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(monkeypatch) as (broker, found):
            broker.subscribe("c", "t")
            await sample(found)
            await publish(broker, "t=1", "t=2")
            while not (seen := await sample(found))["lag"]["slowest"]:
                pass
            (slow,) = seen["lag"]["slowest"]
            assert (slow["name"], slow["filter"], slow["behind"], slow["connected"]) == ("c", "t", 2, False)
            assert slow["trend"][-1] == slow["seconds"]
            assert seen["doors"] == [
                {"door": "test", "connections": 2, "accepted": 5, "rejected": 3, "dropped": 4}
            ]
            assert seen["totals"]["topics"] == 1
            history = json.loads(found.history())
            assert set(history) == {"time", *RATES, "commit_ms", "sync_ms"}
            assert any(history["published"])
            assert len({len(column) for column in history.values()}) == 1
            subscription = broker.subscription("c", "t")
            broker.ack(subscription, broker.topic("t"), 1, 3)
            await broker.commit()
            while (await sample(found))["lag"]["slowest"]:
                pass

    run(work())


def test_all_who_watch_get_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(monkeypatch) as (broker, found):
            looks = 0
            lag = broker.lag

            async def counted() -> Any:
                nonlocal looks
                looks += 1
                return await lag()

            monkeypatch.setattr(broker, "lag", counted)
            for _ in range(3):
                before = looks
                samples = await asyncio.gather(*[found.following() for _ in range(10)])
                assert all(one is samples[0] for one in samples)
                assert looks <= before + 2, "the one that was being made, and the next"

    run(work())


def test_nobody_watches_and_lag_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(monkeypatch) as (broker, found):

            async def refused() -> Any:
                raise AssertionError

            monkeypatch.setattr(broker, "lag", refused)
            for _ in range(5):
                await asyncio.shield(found._made)
            assert len(json.loads(found.history())["time"]) >= 5

    run(work())


def test_who_watches_when_it_is_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(monkeypatch) as (_, found):
            waiting = asyncio.ensure_future(found.following())
            await asyncio.sleep(0)
            found.close()
            assert await waiting is None
            assert await found.following() is None

    run(work())


def test_one_whose_oldest_message_stays_the_same_is_stalled() -> None:
    trend = _Trend(0.0, 1000.0)
    for now in range(12):  # the oldest is of 1000.0, and a second older each time
        trend.add(float(now), 1000.0 + now, Slow("c", "t", 5, float(now)))
    assert 11.0 - trend.since >= STALLED
    trend.add(12.0, 1012.0, Slow("c", "t", 4, 3.0))  # it has gone on
    assert trend.since == 12.0
    trend.add(13.0, 1013.0, Slow("c", "t", 4, None))  # it is not known yet
    assert (trend.since, trend.seconds[-1]) == (13.0, None)


def test_one_is_stalled_also_where_so_many_are_behind_that_they_are_seldom_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag, "LITTLE", -1)
    monkeypatch.setattr(overview, "STALLED", 1.2)  # within which there is one look

    async def work() -> None:
        async with opened(monkeypatch) as (broker, found):
            broker.subscribe("c", "t")
            await publish(broker, "t=1")
            async with asyncio.timeout(PATIENCE):
                while not [one for one in (await sample(found))["lag"]["slowest"] if one["stalled"]]:
                    pass

    run(work())
