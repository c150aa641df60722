"""A topic of 10,000,000 messages read through the Flight door: how fast, and how much memory that takes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import bulk
from benchmarks.brokers import Broker
from benchmarks.load import Load
from benchmarks.machine import forget_cached, memory, peak_memory
from benchmarks.percentiles import median
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting

TOPIC = "bench/0"
COLUMNS = ["offset", "payload"]
FILE = "Arrow IPC file, offset and payload"
READS = {"Flight, offset and payload": COLUMNS, "Flight, all columns": None}
FEW_AT_THE_BROKER = Bar("broker", "<", 256, " MB")
FEW_AT_THE_CLIENT = Bar("client", "<", 256, " MB")


class Measure(NamedTuple):
    rate: float  # messages a second
    broker: float | None  # by how much its memory grew, in MB
    client: float


def run(setting: Setting) -> list[Table]:
    total, rounds = setting.sized((10_000_000, 3), (50_000, 1))
    with TemporaryDirectory(dir=setting.folder) as folder:
        broker = Broker(Path(folder) / "data", "flight")
        file = Path(folder) / "file" / "messages.arrow"
        file.parent.mkdir()
        try:
            broker.start()
            with Load() as load:
                setting.say(f"storing {total:,} messages")
                load.run(bulk.keep, broker.flight, TOPIC)
                load.run(bulk.write, broker.flight, TOPIC, total=total)
                load.run(bulk.save, broker.flight, TOPIC, COLUMNS, file)
            ways: dict[str, Callable[[], Measure]] = {
                label: partial(_read, broker, total, columns) for label, columns in READS.items()
            }
            ways[FILE] = partial(_read_file, file, total)
            measures: dict[str, list[Measure]] = {label: [] for label in ways}
            for number in range(rounds):
                for label, measure in ways.items():
                    setting.say(f"round {number + 1} of {rounds}, {label}")
                    measures[label].append(measure())
        finally:
            broker.kill()
    return [_table(total, measures)]


def _read(broker: Broker, total: int, columns: list[str] | None) -> Measure:
    """With a broker and a client that have done nothing before, and nothing in the system's cache."""
    broker.stop()
    forget_cached(broker.data)
    broker.start()
    before = memory(broker.pid).resident
    with Load() as load:
        done = load.run(bulk.read, broker.flight, TOPIC, total, columns)
    return Measure(done.pace.rate, peak_memory(broker.pid) - before, done.growth)


def _read_file(file: Path, total: int) -> Measure:
    forget_cached(file.parent)
    with Load() as load:
        done = load.run(bulk.read_file, file, total)
    return Measure(done.pace.rate, None, done.growth)


def _table(total: int, measures: dict[str, list[Measure]]) -> Table:
    limit = median([each.rate for each in measures[FILE]])
    rows = []
    for label, rounds in measures.items():
        rate = median([each.rate for each in rounds])
        growths = [each.broker for each in rounds if each.broker is not None]
        values: dict[str, Value] = {
            "what": label,
            "rate": rate,
            "ratio": rate / limit,
            "broker": max(growths) if growths else None,
            "client": max(each.client for each in rounds),
        }
        rows.append(Row(values, (FEW_AT_THE_BROKER, FEW_AT_THE_CLIENT) if growths else ()))
    return Table(
        f"Reading a topic of {total:,} messages of {PAYLOAD} bytes",
        f"One Python client, batch by batch. The round in the middle of {len(rounds)}, the ways in turn, with nothing "
        "of the files in the system's cache; beside it the same rows in an Arrow IPC file, read from the same disk. "
        "Memory is the most that a process had resident while it read, beyond what it had before, the largest of all "
        "rounds; broker and client are new for each.",
        (
            Column("what", "read from"),
            Column("rate", "messages/s"),
            Column("ratio", "ratio", 2),
            Column("broker", "broker MB more"),
            Column("client", "client MB more"),
        ),
        tuple(rows),
    )
