"""What a PUT costs on top of up to 10,000,000 stored messages, and how a broker starts on those."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks import growth
from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, Subs, TextPuts
from benchmarks.load import Load, pace
from benchmarks.machine import forget_cached, peak_memory
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import PAYLOAD, Setting

QUICKLY = Bar("seconds", "<", 3, " s")
SMALL = Bar("memory_mb", "<", 300, " MB")
PORTION = 1_000_000  # messages stored between two words of progress
STARTS = 3


def run(setting: Setting) -> list[Table]:
    total = growth.puts(setting)
    sizes = setting.sized((0, 100_000, 1_000_000, 10_000_000), (0, 1_000, 10_000))
    points: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        load = stack.enter_context(Load())
        for size in sizes:
            if size < total:
                points[f"{size:,}"] = partial(_cost_anew, setting, load, size, total)
            else:
                broker = stack.enter_context(Broker(setting.folder / f"data{size}"))
                _store(setting, load, broker, size)
                points[f"{size:,}"] = partial(growth.cost, load, broker, total)
        costs = growth.table(
            setting,
            "Cost of a PUT by number of stored messages",
            "stored before",
            "They are held by a subscriber that never reads. Every round adds its own to the larger ones; the "
            "smaller ones are stored anew for each.",
            points,
        )
        return [costs, _starts(setting, load, broker, sizes[-1])]


def _cost_anew(setting: Setting, load: Load, size: int, total: int) -> float:
    """The cost on a new broker that has so many stored."""
    with TemporaryDirectory(dir=setting.folder) as folder, Broker(Path(folder)) as broker:
        _store(setting, load, broker, size)
        return growth.cost(load, broker, total)


def _store(setting: Setting, load: Load, broker: Broker, size: int) -> None:
    load.run(pace, broker.address, Subs(1, "keeper", TOPIC))
    for begun in range(0, size, PORTION):
        if size > PORTION:
            setting.say(f"storing, {begun:,} of {size:,}")
        portion = min(PORTION, size - begun)
        load.run(pace, broker.address, TextPuts(PAYLOAD, total=portion), window=growth.WINDOW)


def _starts(setting: Setting, load: Load, broker: Broker, size: int) -> Table:
    unclean = setting.sized(90_000, 1_000)
    ends: dict[str, Callable[[], object]] = {
        "it was stopped": broker.stop,
        "it was killed (kill -9)": broker.kill,
    }
    rows = []
    for label, end in ends.items():
        seconds, memory = [], []
        for number in range(STARTS):
            setting.say(f"start {number + 1} of {STARTS} after {label}")
            load.run(pace, broker.address, TextPuts(PAYLOAD, total=unclean), window=growth.WINDOW)
            end()
            forget_cached(broker.data)
            begin = perf_counter()
            broker.start()
            seconds.append(perf_counter() - begin)
            memory.append(peak_memory(broker.pid))
        rows.append(
            Row({"after": label, "seconds": max(seconds), "memory_mb": max(memory)}, (QUICKLY, SMALL))
        )
    return Table(
        f"Start on {size:,} stored messages and those of the rounds",
        f"The slowest and the largest of {STARTS}, each right after {unclean:,} more PUTs: from the start of the "
        "process until it says that it listens, with nothing of its files in the system's cache; and the most memory "
        "that was resident by then.",
        (Column("after", "after"), Column("seconds", "start s", 2), Column("memory_mb", "memory MB")),
        tuple(rows),
    )
