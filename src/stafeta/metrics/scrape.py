"""One scrape: reads what the broker counts, and writes it as Prometheus reads it.

1. Nothing is counted for a scrape: the broker and the doors have their counters anyway, plain numbers that they change
   once for each batch or commit.
2. What is read at once is read on the loop; what grows with the number of subscriptions or topics is read in portions,
   or is a few seconds old (`broker/lag.py`); files are looked at, and text is made, in a thread.
3. Topics are not named unless somebody asks for them, and then not more than he says.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stafeta.broker import Broker
from stafeta.metrics import families, topics
from stafeta.metrics.jobs import Jobs
from stafeta.metrics.loop_lag import LoopLag

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from stafeta.doors.figures import MeasuredDoor


class Scrape(NamedTuple):
    body: bytes
    content_type: str


class Metrics:
    """Made when the broker is open; `doors` may still grow."""

    def __init__(self, broker: Broker, doors: "Sequence[MeasuredDoor]") -> None:
        self._broker = broker
        self._doors = doors
        self._jobs = Jobs(broker)
        self._loop = asyncio.get_running_loop()
        self._loop_lag = LoopLag()
        self._first: asyncio.Task[object] | None = None

    def start(self) -> None:
        self._loop_lag.start()
        # With many subscriptions the first look at their lag takes a while: nobody is to wait for it.
        self._first = self._loop.create_task(self._broker.lag())

    def close(self) -> None:
        self._loop_lag.stop()
        if self._first is not None:
            self._first.cancel()

    async def scrape(self, accept: str = "", filter_: str = "", limit: int = 0) -> Scrape:
        """What there is to tell, in the form that fits the header Accept best; with a filter also of the topics that
        match, `limit` of them at most. Raises `InvalidName` for what is no filter."""
        broker = self._broker
        named = await topics.of(broker, filter_, limit) if filter_ else None
        lag = await broker.lag()
        usage = await broker.usage()
        jobs = await self._jobs.figures()
        # From here on it is one instant.
        found = [
            *families.of_broker(broker.figures()),
            *families.of_store(usage),
            *families.of_doors([door.figures() for door in self._doors], broker.security),
            *families.of_lag(lag, self._loop.time() - lag.made),
            *families.of_loop(self._loop_lag.seconds),
            *families.of_jobs(jobs, broker.now()),
        ]
        return await asyncio.to_thread(_written, found, named, accept)


class _Read(Collector):
    """What was read for one scrape."""

    def __init__(self, found: "Sequence[Metric]") -> None:
        self._found = found

    def collect(self) -> "Iterable[Metric]":
        return self._found


def _written(found: "list[Metric]", named: topics.TopicFigures | None, accept: str) -> Scrape:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read([*found, *(families.of_topics(named) if named is not None else ())]))
    ProcessCollector(registry=registry)  # looks at every open file, which may be many
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    if named is not None and named.left_out and content_type.startswith("text/plain"):
        body += f"# {named.left_out} more topics match; {len(named.lines)} are told of.\n".encode()
    return Scrape(body, content_type)
