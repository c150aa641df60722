"""A ZeroMQ PUT while a bulk producer and a bulk reader run flat out through the Flight door."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import zmq

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, Subs
from benchmarks.load import Load, LoadFailed, pace
from benchmarks.percentiles import median, percentile
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

RATE = 100  # PUTs a second of the client that has a pace
HISTORY, BULK = "history", "bulk"
WAYS = {f"{RATE} a second": RATE, "one after the other": None}
UNDISTURBED = {way: Bar("p99_ms", "<", most, " ms") for way, most in zip(WAYS, (15, 25), strict=True)}
_PATIENCE = 120_000  # milliseconds for a reply


class Puts(NamedTuple):
    rate: float  # a second
    p50: float  # seconds until the reply
    p99: float
    largest: float


class Measure(NamedTuple):
    puts: Puts
    written: float | None  # rows a second, of the bulk producer
    read: float | None  # and of the bulk reader


def run(setting: Setting) -> list[Table]:
    rounds, history = setting.sized((3, 1_000_000), (1, 20_000))
    measures: dict[tuple[str, bool], list[Measure]] = {
        (way, busy): [] for way in WAYS for busy in (False, True)
    }
    for number in range(rounds):
        with (
            TemporaryDirectory(dir=setting.folder) as folder,
            Broker(Path(folder), "flight") as broker,
            Load() as putter,
            Load() as producer,
            Load() as reader,
        ):
            putter.run(pace, broker.address, Subs(1, "keeper", TOPIC))
            for topic in (HISTORY, BULK):
                producer.run(bulk.keep, broker.flight, topic)
            producer.run(bulk.write, broker.flight, HISTORY, total=history)
            for (way, busy), measured in measures.items():
                setting.say(f"round {number + 1} of {rounds}, {way}, {'bulk' if busy else 'nothing'} besides")
                loads = (producer, reader) if busy else None
                measured.append(_measure(setting, broker, putter, loads, WAYS[way]))
    return [_table(history, measures)]


def _measure(
    setting: Setting, broker: Broker, putter: Load, loads: tuple[Load, Load] | None, rate: int | None
) -> Measure:
    seconds, lead = setting.sized((5.0, 1.0), (0.3, 0.2))
    if loads is None:
        return Measure(putter.run(put, broker.address, rate, seconds), None, None)
    producer, reader = loads
    place, long = broker.flight, lead + seconds + lead
    written = producer.start(bulk.write, place, BULK, seconds=long)
    read = reader.start(bulk.read_again_and_again, place, HISTORY, long)
    time.sleep(lead)  # until both run flat out
    puts = putter.run(put, broker.address, rate, seconds)
    return Measure(puts, written().rate, read().rate)


def put(address: str, rate: int | None, seconds: float) -> Puts:
    """PUTs by one client, each after the reply to the one before; with a rate, each when it is due.

    Latency is from when a PUT was due, so that one that is held up by those before it counts with its wait.
    """
    frame = f"PUT {TOPIC} {'x' * PAYLOAD}".encode()
    latencies = []
    with zmq.Context() as context, context.socket(zmq.REQ) as line:
        line.rcvtimeo = _PATIENCE
        line.linger = 0
        line.connect(address)
        _ask(line, frame)
        start = due = time.perf_counter()
        while due - start < seconds:
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            _ask(line, frame)
            now = time.perf_counter()
            latencies.append(now - due)
            due = now if rate is None else start + len(latencies) / rate
        took = now - start
    latencies.sort()
    return Puts(len(latencies) / took, percentile(latencies, 50), percentile(latencies, 99), latencies[-1])


def _ask(line: "zmq.Socket[bytes]", frame: bytes) -> None:
    line.send(frame)
    try:
        reply = line.recv()
    except zmq.Again:
        raise LoadFailed("The broker does not answer.") from None
    if not reply.startswith(b"ACK"):
        raise LoadFailed(f"The broker answered {reply[:100]!r}.")


def _table(history: int, measures: dict[tuple[str, bool], list[Measure]]) -> Table:
    rows = []
    for (way, busy), rounds in measures.items():
        middle = sorted(rounds, key=lambda each: each.puts.p99)[(len(rounds) - 1) // 2].puts
        values: dict[str, Value] = {
            "way": way,
            "beside": "bulk" if busy else "nothing",
            "rate": middle.rate,
            "p50_ms": middle.p50 * 1000,
            "p99_ms": middle.p99 * 1000,
            "max_ms": max(each.puts.largest for each in rounds) * 1000,
            "written": _median([each.written for each in rounds]),
            "read": _median([each.read for each in rounds]),
        }
        rows.append(Row(values, (UNDISTURBED[way],) if busy else ()))
    return Table(
        f"PUT of {PAYLOAD} bytes by ZeroMQ, beside bulk through the Flight door",
        f"One client, text dialect. The round in the middle by p99 of {len(rounds)}; the slowest PUT of all rounds. "
        f"Bulk is a producer of batches of {bulk.ROWS:,} messages of {PAYLOAD} bytes, all held for a subscriber, and a "
        f"reader that reads a topic of {history:,} from its beginning again and again, all columns, each a process of "
        "its own. With a rate, latency is from when a PUT was due.",
        (
            Column("way", "PUTs"),
            Column("beside", "besides"),
            Column("rate", "PUTs/s"),
            Column("p50_ms", "p50 ms", 2),
            Column("p99_ms", "p99 ms", 2),
            Column("max_ms", "max ms", 2),
            Column("written", "bulk written/s"),
            Column("read", "bulk read/s"),
        ),
        tuple(rows),
        labels=2,
    )


def _median(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else None
