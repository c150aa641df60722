"""Durable PUT in the JSON dialect, counted, and with `stafeta.Client`: one message at a time and many."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from time import perf_counter

import stafeta
from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, JsonPuts, Subs
from benchmarks.load import Load, Pace, pace
from benchmarks.percentiles import percentile
from benchmarks.put import PIPELINED, Shape, measure, shapes_table
from benchmarks.rates import CHOSEN, RATES, rates
from benchmarks.results import Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

SHAPES = [Shape(1, 1), Shape(10, 1), Shape(100, 1), Shape(1, 1000), Shape(10, 100)]


def run(setting: Setting) -> list[Table]:
    measures = measure(setting, JsonPuts(PAYLOAD), SHAPES)
    return [shapes_table(f"PUT of {PAYLOAD} bytes, JSON dialect with a counter", measures), _clients(setting)]


def _clients(setting: Setting) -> Table:
    rounds = setting.sized(5, 1)
    seconds, total = setting.sized((3.0, 200_000), (0.2, 2_000))
    paces: dict[tuple[str, str], list[Pace]] = {}
    with Load() as load:
        for number in range(rounds):
            setting.say(f"stafeta.Client, round {number + 1} of {rounds}")
            with Broker(setting.folder / f"client-data{number}") as broker:
                load.run(pace, broker.address, Subs(1, "keeper", TOPIC))
                for kind in ("without a folder", "with a folder"):
                    folder = setting.folder / f"client{number}" if kind == "with a folder" else None
                    single = load.run(put, broker.address, folder, seconds)
                    many = load.run(put_many, broker.address, folder, total)
                    paces.setdefault(("put", kind), []).append(single)
                    paces.setdefault(("put_many", kind), []).append(many)
    rows = []
    for (verb, kind), measured in sorted(paces.items()):
        values: dict[str, Value] = {"call": f"{verb}, {kind}"}
        rows.append(Row(values | rates(measured), (PIPELINED,) if verb == "put_many" else ()))
    return Table(
        f"PUT of {PAYLOAD} bytes with stafeta.Client",
        f"{CHOSEN} {rounds}. A client with a folder writes there what it "
        "sends, so that it can go on after a crash.",
        (Column("call", "Client"), *RATES),
        tuple(rows),
    )


def put(address: str, folder: Path | None, seconds: float) -> Pace:
    """`Client.put` again and again, for so long."""
    with _client(address, folder) as client:
        payload = "x" * PAYLOAD
        latencies = []
        start = now = perf_counter()
        while now - start < seconds:
            before = now
            client.put(TOPIC, payload)
            now = perf_counter()
            latencies.append(now - before)
    latencies.sort()
    return Pace(len(latencies), now - start, percentile(latencies, 50), percentile(latencies, 99))


def put_many(address: str, folder: Path | None, total: int) -> Pace:
    """`Client.put_many` with so many messages."""
    with _client(address, folder) as client:
        start = perf_counter()
        receipt = client.put_many(TOPIC, repeat("x" * PAYLOAD, total))
        return Pace(receipt.total, perf_counter() - start)


@contextmanager
def _client(address: str, folder: Path | None) -> Iterator[stafeta.Client]:
    with stafeta.Client(address, folder) as client:
        client.put(TOPIC, "connected and known to the broker")
        yield client
