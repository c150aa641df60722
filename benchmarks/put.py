"""Durable PUT in the text dialect: throughput and latency, beside what the disk alone could do."""

from typing import NamedTuple

from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, Frames, Subs, TextPuts
from benchmarks.load import Load, Pace, pace
from benchmarks.machine import disk_rate
from benchmarks.percentiles import median
from benchmarks.rates import CHOSEN, RATES, rates
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

PIPELINED = Bar("rate", "≥", 40_000, "/s")
ALONE = Bar("p50_ms", "≤", 0.5, " ms")


class Shape(NamedTuple):
    clients: int
    window: int  # requests of each client on their way


SHAPES = [
    Shape(1, 1),
    Shape(10, 1),
    Shape(100, 1),
    Shape(1, 100),
    Shape(1, 1000),
    Shape(1, 5000),
    Shape(10, 100),
    Shape(100, 100),
]


class Measure(NamedTuple):
    pace: Pace
    disk: float  # messages a second


def run(setting: Setting) -> list[Table]:
    measures = measure(setting, TextPuts(PAYLOAD), SHAPES)
    return [shapes_table(f"PUT of {PAYLOAD} bytes, text dialect", measures, ALONE)]


def measure(setting: Setting, frames: Frames, shapes: list[Shape]) -> dict[Shape, list[Measure]]:
    """All shapes one after the other, several times, each time with a new broker."""
    seconds, rounds = setting.sized(3.0, 0.2), setting.sized(5, 1)
    measures: dict[Shape, list[Measure]] = {shape: [] for shape in shapes}
    with Load() as load:
        for number in range(rounds):
            setting.say(f"round {number + 1} of {rounds}")
            with Broker(setting.folder / f"data{number}") as broker:
                load.run(pace, broker.address, Subs(1, "keeper", TOPIC))
                for shape in shapes:
                    clients, window = shape
                    done = load.run(
                        pace, broker.address, frames, clients=clients, window=window, seconds=seconds
                    )
                    disk = disk_rate(setting.folder, clients * window, PAYLOAD, seconds / 4)
                    measures[shape].append(Measure(done, disk))
    return measures


def shapes_table(title: str, measures: dict[Shape, list[Measure]], alone: Bar | None = None) -> Table:
    columns = (
        Column("clients", "clients"),
        Column("window", "on their way each"),
        *RATES,
        Column("disk", "disk alone/s"),
    )
    rows = []
    for shape, rounds in measures.items():
        values: dict[str, Value] = {"clients": shape.clients, "window": shape.window}
        values |= rates([each.pace for each in rounds]) | {"disk": median([each.disk for each in rounds])}
        pipelined = shape.clients == 1 and shape.window >= 1000
        bar = PIPELINED if pipelined else alone if shape == (1, 1) else None
        rows.append(Row(values, () if bar is None else (bar,)))
    note = (
        f"{CHOSEN} {max(map(len, measures.values()))}. The disk alone: a plain write and fdatasync of the same "
        "messages, all that may be on their way at once in each portion."
    )
    return Table(title, note, columns, tuple(rows), labels=2)
