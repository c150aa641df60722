"""What a scrape of /metrics takes with 1,000 to 100,000 topics and subscriptions, and what scrapes and dashboards cost
publishing."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

import psutil

from benchmarks import growth
from benchmarks.brokers import Broker
from benchmarks.dashboards import looking
from benchmarks.frames import Subs, TextPuts
from benchmarks.load import Load, pace
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from stafeta.broker import Broker as InProcess
from stafeta.metrics import Metrics
from stafeta.store.sqlite import SqliteStore

QUICKLY = Bar("slowest_ms", "<", 100, " ms")
BRIEFLY = Bar("step_ms", "<", 10, " ms")
LITTLE = Bar("ratio", "≤", 1.05, " times")
DASHBOARDS = 10
SCRAPES = 20
PAUSE = 0.25  # seconds between two


class Scraped(NamedTuple):
    seconds: list[float]
    lines: int


def run(setting: Setting) -> list[Table]:
    sizes = setting.sized((1_000, 10_000, 100_000), (100, 3_000))
    rows = []
    with ExitStack() as stack:
        load = stack.enter_context(Load())
        for size in sizes:
            setting.say(f"{size:,} topics and subscriptions")
            broker = stack.enter_context(Broker(setting.folder / f"data{size}", "http"))
            load.run(pace, broker.address, Subs(size, "keeper{}", "bench/{}"), window=growth.WINDOW)
            load.run(pace, broker.address, TextPuts(PAYLOAD, size, size), window=growth.WINDOW)
            scraped = _scrape(broker, setting.sized(SCRAPES, 3))
            step = asyncio.run(
                _longest_step(setting.folder / f"steps{size}", size, setting.sized(SCRAPES, 3))
            )
            values: dict[str, Value] = {
                "size": f"{size:,}",
                "median_ms": 1000 * median(scraped.seconds),
                "slowest_ms": 1000 * max(scraped.seconds),
                "lines": scraped.lines,
                "step_ms": 1000 * step,
            }
            rows.append(Row(values, (QUICKLY, BRIEFLY)))
        scrapes = Table(
            "A scrape of /metrics",
            "Each subscription is durable, has a topic and a client of its own, and waits for a message. Scrapes by "
            f"HTTP, {PAUSE:g} s between two. The longest step is the most processor time that the event loop took at "
            "once, in a broker within the process that measures, with all that is done in the background.",
            (
                Column("size", "topics and subscriptions"),
                Column("median_ms", "median ms", 1),
                Column("slowest_ms", "slowest ms", 1),
                Column("lines", "lines"),
                Column("step_ms", "longest step of the loop, ms", 1),
            ),
            tuple(rows),
        )
        return [scrapes, _beside(setting, load, broker, f"{sizes[-1]:,}")]


def _scrape(broker: Broker, times: int) -> Scraped:
    connection = HTTPConnection(*broker.door("http"), timeout=60)
    found = Scraped([], 0)
    try:
        for _ in range(times):
            start = perf_counter()
            connection.request("GET", "/metrics")
            body = connection.getresponse().read()
            found = Scraped([*found.seconds, perf_counter() - start], body.count(b"\n"))
            threading.Event().wait(PAUSE)
    finally:
        connection.close()
    return found


async def _longest_step(folder: Path, size: int, times: int) -> float:
    """The most seconds of its processor that anything took on the loop at once while scrapes were answered."""
    broker = await InProcess.open(SqliteStore(folder, durability="os"))
    for number in range(size):
        broker.subscribe(f"keeper{number}", f"bench/{number}")
    await broker.commit()
    for number in range(size):
        broker.publish(f"bench/{number}", b"x" * PAYLOAD)
    await broker.commit()
    gc.collect()
    gc.freeze()  # as a broker does, so that nobody looks through all of that meanwhile
    metrics = Metrics(broker, ())
    with _timed_steps() as steps:
        metrics.start()
        for _ in range(times):
            await metrics.scrape()
            await asyncio.sleep(PAUSE)
    metrics.close()
    await broker.close()
    return max(steps)


@contextmanager
def _timed_steps() -> Iterator[list[float]]:
    steps = [0.0]
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        start = thread_time()
        run(handle)
        steps[0] = max(steps[0], thread_time() - start)

    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield steps
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


class Cost(NamedTuple):
    """Of one message, in seconds."""

    seconds: float
    broker: float  # of the processor's time that the broker takes


def _beside(setting: Setting, load: Load, broker: Broker, size: str) -> Table:
    total = setting.sized(60_000, 2_000)
    place = broker.door("http")
    points: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "nobody": nullcontext,
        "a scrape a second": lambda: _scraping(place),
        f"{DASHBOARDS} dashboards and a scrape a second": lambda: _watching(place),
    }
    costs: dict[str, list[Cost]] = {label: [] for label in points}
    rounds = setting.sized(21, 1)
    setting.say(f"{rounds} rounds of {len(points)}")
    for number in range(rounds):
        order = list(points)
        for label in order[number % len(order) :] + order[: number % len(order)]:
            with points[label]():
                before = _processor(broker)
                seconds = growth.cost(load, broker, total)
                costs[label].append(Cost(seconds, (_processor(broker) - before) / total))
    rows = []
    for label, found in costs.items():
        pairs = list(zip(found, costs["nobody"], strict=True))
        typical = median(one.seconds for one in found)
        values: dict[str, Value] = {
            "point": label,
            "rate": 1 / typical,
            "cost_us": typical * 1e6,
            "ratio": median(one.seconds / alone.seconds for one, alone in pairs),
            "broker_us": median(one.broker for one in found) * 1e6,
            "broker_ratio": median(one.broker / alone.broker for one, alone in pairs),
        }
        rows.append(Row(values, () if label == "nobody" else (LITTLE,)))
    return Table(
        "Cost of a PUT while somebody looks",
        f"There are {size} topics and subscriptions. One client, {growth.WINDOW:,} PUTs on their way, {total:,} a "
        f"round, {rounds} rounds: medians. The ratios are to what it costs with nobody in the same round, because the "
        "machine is not the same for long. A dashboard is its front page's requests and streams, without a "
        "browser, read by the process that measures.",
        (
            Column("point", "who looks"),
            Column("rate", "messages/s"),
            Column("cost_us", "µs a message", 1),
            Column("ratio", "ratio", 2),
            Column("broker_us", "µs of the broker's processor", 1),
            Column("broker_ratio", "ratio", 2),
        ),
        tuple(rows),
    )


def _processor(broker: Broker) -> float:
    """Seconds of processor time that the broker has taken."""
    times = psutil.Process(broker.pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def _watching(place: tuple[str, int]) -> Iterator[None]:
    with looking(place, DASHBOARDS), _scraping(place):
        yield


@contextmanager
def _scraping(place: tuple[str, int]) -> Iterator[None]:
    over = threading.Event()

    def scrape() -> None:
        connection = HTTPConnection(*place, timeout=60)
        while not over.is_set():
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            over.wait(1.0)
        connection.close()

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        over.set()
        scraper.join()
