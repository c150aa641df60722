"""Messages by the batch, through the Flight door with `stafeta.connect`: run these in a `Load`."""

import base64
import os
import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import pyarrow as pa

import stafeta
from benchmarks.load import LoadFailed, Pace
from benchmarks.machine import memory, peak_memory
from benchmarks.setting import PAYLOAD

ROWS = 10_000  # of a batch
_BATCHES = 16  # that differ
_KEEPER = "keeper"


class Read(NamedTuple):
    """How fast messages were read, and how much more memory the reader's process took than before, in MB."""

    pace: Pace
    growth: float


def batches() -> Iterator[pa.RecordBatch]:
    """Batches of printable bytes, without end."""
    chance = random.Random(1)
    made = []
    for _ in range(_BATCHES):
        # Quick to make: a load that is to run beside something else has to begin at once.
        text = base64.b64encode(chance.randbytes(ROWS * PAYLOAD * 3 // 4))
        rows = [text[at : at + PAYLOAD] for at in range(0, len(text), PAYLOAD)]
        made.append(pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], ["payload"]))
    return cycle(made)


def keep(place: str, topic: str) -> None:
    """Makes a durable subscription that never reads, so that the topic holds what is published."""
    with stafeta.connect(place) as broker, broker.subscribe(topic, name=_KEEPER):
        pass


def write(place: str, topic: str, *, total: int | None = None, seconds: float | None = None) -> Pace:
    """Publishes so many messages, or for so long, as fast as the broker takes them."""
    made = batches()
    with stafeta.connect(place) as broker, broker.producer(topic) as producer:
        start = perf_counter()
        while producer.sent < total if total is not None else perf_counter() - start < (seconds or 0.0):
            batch = next(made)
            producer.write(batch if total is None else batch.slice(0, total - producer.sent))
        producer.flush()
        return Pace(producer.acknowledged, perf_counter() - start)


def read_again_and_again(place: str, topic: str, seconds: float) -> Pace:
    """Reads a topic from its beginning to its end, as often as that goes in so many seconds."""
    total = 0
    with stafeta.connect(place) as broker:
        start = perf_counter()
        while True:
            for batch in broker.batches(topic):
                total += batch.num_rows
                if (took := perf_counter() - start) >= seconds:
                    return Pace(total, took)


def read(place: str, topic: str, total: int, columns: list[str] | None) -> Read:
    """Reads a topic once."""
    with stafeta.connect(place) as broker:
        before = memory(os.getpid()).resident
        start = perf_counter()
        rows = sum(batch.num_rows for batch in broker.batches(topic, columns=columns))
        took = perf_counter() - start
    if rows != total:
        raise LoadFailed(f"{rows:,} messages were read, of {total:,}.")
    return Read(Pace(rows, took), peak_memory(os.getpid()) - before)


def save(place: str, topic: str, columns: list[str], path: Path) -> None:
    """Writes a topic into an Arrow IPC file."""
    with stafeta.connect(place) as broker, pa.OSFile(str(path), "wb") as file:
        writer: pa.ipc.RecordBatchFileWriter | None = None
        for batch in broker.batches(topic, columns=columns):
            writer = writer or pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        assert writer is not None
        writer.close()


def read_file(path: Path, total: int) -> Read:
    """Reads an Arrow IPC file once, batch by batch."""
    before = memory(os.getpid()).resident
    start = perf_counter()
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        rows = sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
    took = perf_counter() - start
    if rows != total:
        raise LoadFailed(f"{rows:,} messages were read, of {total:,}.")
    return Read(Pace(rows, took), peak_memory(os.getpid()) - before)
