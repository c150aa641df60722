"""Messages for the benchmarks of the pipeline, through the Flight door: run these in a `Load`."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import cycle
from threading import Event, Thread
from time import sleep, time
from typing import Any, NamedTuple

import pyarrow as pa

import stafeta
from benchmarks import bulk
from benchmarks.load import LoadFailed
from stafeta.clients.flight.subscription import Subscription
from stafeta.errors import Disconnected

READINGS = "readings"
TOPICS = 100
RATE = 100  # readings a second of each topic, in their own time
START = datetime(2026, 1, 1, tzinfo=UTC)

_BATCHES = 16  # that differ
_TIME = pa.timestamp("us", "UTC")
_TICK = 0.01


def name(number: int) -> str:
    return f"{READINGS}/{number:02}"


def write_readings(place: str, total: int) -> None:
    """Publishes so many readings of 100 topics, each with its own time, second by second."""
    second = TOPICS * RATE
    topics = pa.array([name(row % TOPICS) for row in range(second)])
    ages = pa.array([row // TOPICS * 1_000_000 // RATE for row in range(second)], pa.int64())
    kinds = pa.array(["float"] * second)
    with stafeta.connect(place) as broker:
        for number, values in enumerate(_values(second)):
            if number * second >= total:
                break
            first = _micros(START) + number * 1_000_000
            times = pa.array(ages.to_numpy() + first, pa.int64()).cast(_TIME)
            columns: dict[str, pa.Array[Any]] = {
                "topic": topics,
                "payload": values,
                "kind": kinds,
                "timestamp": times,
            }
            batch = pa.RecordBatch.from_pydict(columns)
            broker.publish(None, batch.slice(0, total - number * second))


def close_windows(place: str) -> None:
    """Publishes a reading of each topic of today, long after all others."""
    last = {"payload": "0", "kind": "float", "timestamp": datetime.now(UTC)}
    with stafeta.connect(place) as broker:
        broker.publish(None, pa.Table.from_pylist([{"topic": name(each)} | last for each in range(TOPICS)]))


def write_days(place: str, topic: str, total: int, days: int) -> None:
    """Publishes so many messages as if they had come evenly during the days before today."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begin, step = _micros(today - timedelta(days=days)), days * 86_400_000_000 // total
    sent = 0
    with stafeta.connect(place) as broker, broker.producer(topic) as producer:
        for batch in bulk.batches():
            if sent >= total:
                break
            part = batch.slice(0, total - sent)
            ages = range(sent, sent + part.num_rows)
            times = pa.array([begin + age * step for age in ages], pa.int64()).cast(_TIME)
            producer.write(pa.RecordBatch.from_arrays([part.column(0), times], ["payload", "timestamp"]))
            sent += part.num_rows
        producer.flush()


class Sent(NamedTuple):
    """Readings at an even pace, of each topic in turn, the first at a time in seconds since 1970."""

    begin: float
    rate: int
    topics: int
    total: int

    def readings(self) -> Iterator[tuple[str, float]]:
        """The topic and the time of each."""
        for number in range(self.total):
            yield name(number % self.topics), self.begin + number / self.rate


def send_evenly(place: str, topics: int, rate: int, seconds: float) -> Sent:
    """Publishes readings at an even pace, each with the time at which it was due."""
    values = cycle(next(_values(1_000)).to_pylist())
    sent = 0
    with stafeta.connect(place) as broker:
        begin = time()
        while sent < rate * seconds:
            due = min(int((time() - begin) * rate), int(rate * seconds))
            if due > sent:
                rows = [
                    {
                        "topic": name(number % topics),
                        "payload": next(values),
                        "kind": "float",
                        "timestamp": datetime.fromtimestamp(begin + number / rate, UTC),
                    }
                    for number in range(sent, due)
                ]
                broker.publish(None, pa.Table.from_pylist(rows))
                sent = due
            sleep(_TICK)
    return Sent(begin, rate, topics, sent)


class Arrived(NamedTuple):
    """A rollup as it came: seconds since 1970."""

    topic: str
    start: float
    end: float
    readings: int
    came: float


def receive_rollups(place: str, size: str, readings: int, patience: float) -> list[Arrived]:
    """Follows the rollups until they count so many readings, or until none has come for so many seconds."""
    found: list[Arrived] = []
    with stafeta.connect(place) as broker:
        subscription = broker.subscribe(f"rollup/{size}/#", name="latency", columns=["topic", "payload"])
        follower = Thread(target=_follow, args=(subscription, size, found), daemon=True)
        follower.start()
        since, known = time(), 0
        while sum(each.readings for each in found) < readings and time() < since + patience:
            sleep(_TICK * 10)
            if len(found) > known:
                since, known = time(), len(found)
        subscription.close()
        follower.join()
    if not found:
        raise LoadFailed("No rollup has come.")
    return found


class Alerted(NamedTuple):
    """An alert as it came: the time of its reading, and when; seconds since 1970."""

    time: float
    came: float


def receive_alerts(place: str, rule: str, last: str, patience: float) -> list[Alerted]:
    """Follows the alerts of a rule until there is one of the topic `last`, or none for so many seconds."""
    found: list[Alerted] = []
    ended = Event()
    with stafeta.connect(place) as broker:
        subscription = broker.subscribe(f"alerts/{rule}/#", name="alert-latency", columns=["payload"])
        follower = Thread(target=_follow_alerts, args=(subscription, last, found, ended), daemon=True)
        follower.start()
        since, known = time(), 0
        while not ended.wait(_TICK * 10) and time() < since + patience:
            if len(found) > known:
                since, known = time(), len(found)
        subscription.close()
        follower.join()
    if not ended.is_set():
        raise LoadFailed(f"The last alert has not come; there were {len(found)}.")
    return found


def _follow_alerts(subscription: Subscription, last: str, found: list[Alerted], ended: Event) -> None:
    with suppress(Disconnected):
        for batch in subscription:
            came = time()
            for row in batch.data.to_pylist():
                told = json.loads(row["payload"])
                if told["topic"] == last:
                    ended.set()
                else:
                    found.append(Alerted(datetime.fromisoformat(told["time"]).timestamp(), came))
            batch.ack()


def _follow(subscription: Subscription, size: str, found: list[Arrived]) -> None:
    with suppress(Disconnected):
        for batch in subscription:
            came = time()
            for row in batch.data.to_pylist():
                topic = row["topic"].removeprefix(f"rollup/{size}/")
                told = json.loads(row["payload"])
                start, end = (datetime.fromisoformat(told[key]).timestamp() for key in ("start", "end"))
                found.append(Arrived(topic, start, end, told["count"], came))
            batch.ack()


def _values(rows: int) -> Iterator[pa.StringArray]:
    """Readings about 20, with two decimals, without end."""
    chance = random.Random(1)
    made = [pa.array([f"{chance.gauss(20, 5):.2f}" for _ in range(rows)]) for _ in range(_BATCHES)]
    return cycle(made)


def _micros(when: datetime) -> int:
    return round(when.timestamp() * 1_000_000)
