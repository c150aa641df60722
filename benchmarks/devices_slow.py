"""A subscriber that does not read while 1,000,000 messages pass: what it costs the broker, and everybody else."""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchmarks.brokers import Broker
from benchmarks.devices import DeviceStation
from benchmarks.inbox import Inbox
from benchmarks.load import LoadFailed
from benchmarks.machine import memory, peak_memory
from benchmarks.percentiles import median
from benchmarks.readings import ONE, TOPIC, in_order
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.stations import pour, settle

CASES = {"nobody": None, "one with SF 1": True, "one with SF 0": False}
UNDISTURBED = Bar("ratio", "≥", 0.9, " times")
BOUNDED = Bar("more", "<", 50, " MB")


class Passing(NamedTuple):
    rate: float  # messages a second that the other subscriber got
    growth: float  # of the broker's memory at its peak, in MB
    caught_up: float | None  # messages a second that the slow one got once it read


def run(setting: Setting) -> list[Table]:
    total, rounds = setting.sized((1_000_000, 3), (5_000, 1))
    passings: dict[str, list[Passing]] = {label: [] for label in CASES}
    with TemporaryDirectory(dir=setting.folder) as folder:
        inbox = Inbox(total * 2 * PAYLOAD)
        for turn in range(rounds):
            for label, held in CASES.items():
                setting.say(f"round {turn + 1} of {rounds}, {label} does not read")
                passings[label].append(_pass(Path(folder) / f"{turn}-{held}", inbox, held, total))
    alone = passings["nobody"]
    rows = []
    for label, rounds_of_it in passings.items():
        rate = median([each.rate for each in rounds_of_it])
        caught_up = [each.caught_up for each in rounds_of_it if each.caught_up is not None]
        values: dict[str, Value] = {
            "slow": label,
            "rate": rate,
            "ratio": rate / median([each.rate for each in alone]),
            "growth": _largest(rounds_of_it),
            "more": max(_largest(rounds_of_it) - _largest(alone), 0.0),
            "caught_up": median(caught_up) if caught_up else None,
        }
        rows.append(Row(values, (UNDISTURBED, BOUNDED) if caught_up else ()))
    return [
        Table(
            f"A subscriber that does not read while {total:,} messages of {PAYLOAD} bytes pass",
            f"Another subscriber reads all the while, and the publisher waits for that one. Its rate and that of the "
            f"slow one, once it reads, are of the round in the middle of {rounds}, each on a new broker; the growth "
            "of the broker's memory, at its peak while they passed, is the largest, and what of it is for the slow one "
            "is what it grew more than without. The slow one got every message, in order.",
            (
                Column("slow", "who does not read"),
                Column("rate", "messages/s"),
                Column("ratio", "ratio", 2),
                Column("growth", "growth MB"),
                Column("more", "for the slow one MB"),
                Column("caught_up", "then reads/s"),
            ),
            tuple(rows),
        )
    ]


def _largest(passings: list[Passing]) -> float:
    return max(each.growth for each in passings)


def _pass(folder: Path, inbox: Inbox, held: bool | None, total: int) -> Passing:
    with Broker(folder, "devices") as broker:
        station = DeviceStation(broker)
        size = station.delivered(ONE[0])
        publisher = station.publisher(ONE)
        quick = station.subscriber("quick", TOPIC, held=False)
        slow = None if held is None else station.subscriber("slow", TOPIC, held=held)
        try:
            settle([quick, slow] if slow else [quick], publisher)
            first = publisher.sent
            before = memory(broker.pid).resident
            begin, end = pour(publisher, quick, size, total)
            growth = peak_memory(broker.pid) - before
            caught_up = None
            if slow:
                start = perf_counter()
                inbox.clear()
                if not inbox.fill(slow, total * size) or not in_order(inbox.stream, size, first):
                    raise LoadFailed(f"The slow one has not got all {total:,} messages, in order.")
                caught_up = total / (inbox.times[-1] - start)
            return Passing(total / (end - begin), growth, caught_up)
        finally:
            publisher.close()
            quick.close()
            if slow:
                slow.close()
