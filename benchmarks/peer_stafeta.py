"""Stafeta as it is compared: through the Flight door with its own client, and for latency through other doors, too."""

from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

import pyarrow as pa

import stafeta
from benchmarks.brokers import Broker
from benchmarks.load import LoadFailed
from benchmarks.peer import (
    CLIENT,
    FSYNCED,
    PATIENCE,
    TOPIC,
    Peer,
    Timed,
    age,
    expect,
    messages,
    paced,
    pool,
    portions,
)
from stafeta.addresses import Address, read
from stafeta.clients.devices import Publisher, Subscriber
from stafeta.message import Kind

How: TypeAlias = Literal["arrow", "send_many", "send"]
COLUMNS = ["offset", "payload"]
PUTTERS = 4
_PUBLISHING: dict[How, str] = {
    "arrow": "record batches of {rows:,}",
    "send_many": "bytes, send_many, {rows:,} a batch",
    "send": "bytes, send, {rows:,} a batch",
}


class Flight(Peer, Timed):
    """Arrow record batches, or bytes that the client makes such of; they are consumed as what they were published."""

    system = "Stafeta"
    timing = "Flight, linger=0; durable subscription"

    def __init__(self, how: How, *, rows: int = 10_000, durable: bool = True) -> None:
        self.how = how
        self.rows = rows
        self.durable = durable
        self.settings = f"durability {'fsync' if durable else 'os'}"
        self.publishing = f"Flight, {_PUBLISHING[how].format(rows=rows)}"
        self.consuming = f"Flight, {'record batches' if how == 'arrow' else 'payloads as bytes'}"
        self.promise = self.remembers = FSYNCED if durable else "with the system"

    def version(self) -> str | None:
        return stafeta.__version__

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        with Broker(folder, "flight", durability="fsync" if self.durable else "os") as broker:
            yield broker.flight

    def prepare(self, address: str) -> None:
        with stafeta.connect(address) as broker, broker.subscribe(TOPIC, name=CLIENT):
            pass

    def publish(self, address: str, total: int) -> float:
        batches = _batches(self.rows) if self.how == "arrow" else []
        with (
            stafeta.connect(address, timeout=PATIENCE) as broker,
            broker.producer(TOPIC, batch_rows=self.rows) as producer,
        ):
            start = perf_counter()
            if self.how == "arrow":
                for batch in islice(cycle(batches), total // self.rows):
                    producer.write(batch)
            elif self.how == "send_many":
                for portion in portions(total, self.rows):
                    producer.send_many(portion)
            else:
                send = producer.send
                for payload in messages(total):
                    send(payload)
            producer.flush()
            took = perf_counter() - start
            (topic,) = broker.topics(TOPIC)
            expect(total, topic.rows, self.system)
            return took

    def consume(self, address: str, total: int) -> float:
        got = 0
        with (
            stafeta.connect(address, timeout=PATIENCE) as broker,
            broker.subscribe(TOPIC, name=CLIENT, columns=COLUMNS) as subscription,
        ):
            start = perf_counter()
            for batch in subscription:
                got += batch.data.num_rows if self.how == "arrow" else len(batch.payloads())
                batch.ack()
                if got >= total:
                    break
            subscription.flush()
            took = perf_counter() - start
        expect(total, got, self.system)
        return took

    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        with (
            stafeta.connect(address, timeout=PATIENCE) as broker,
            broker.producer(TOPIC, linger=0) as producer,
        ):
            for payload in paced(begin, rate, total):
                producer.send(payload)
            producer.flush()

    def receive(self, address: str, total: int) -> "array[int]":
        ages = array("q")
        with (
            stafeta.connect(address, timeout=PATIENCE) as broker,
            broker.subscribe(TOPIC, name=CLIENT, columns=COLUMNS) as subscription,
        ):
            for batch in subscription:
                ages.extend(map(age, batch.payloads()))
                batch.ack()
                if len(ages) >= total:
                    break
        return ages


class _Client(Timed):
    """A client of another door."""

    system = "Stafeta"
    settings = "durability fsync"
    promise = FSYNCED
    durable = True

    def version(self) -> str | None:
        return stafeta.__version__

    def prepare(self, address: str) -> None:
        """Nothing: its subscriber is there before the first message."""


class ZeroMQ(_Client):
    """`stafeta.Client`: `put` for each message, and `messages`, which acknowledges with its next request.

    A `put` waits for its reply, so that one client has no time to spare at 1,000 a second: several take turns.
    """

    timing = f"ZeroMQ, put by {PUTTERS} clients; messages"

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        with Broker(folder) as broker:
            yield broker.address

    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        with ThreadPoolExecutor(PUTTERS) as threads:
            turns = [
                threads.submit(
                    _put, address, begin + turn * 1_000_000_000 // rate, rate // PUTTERS, total // PUTTERS
                )
                for turn in range(PUTTERS)
            ]
        for turn in turns:
            turn.result()

    def receive(self, address: str, total: int) -> "array[int]":
        with stafeta.Client(address, timeout=PATIENCE) as client:
            client.subscribe(TOPIC)
            return array("q", (age(message.data) for message in islice(client.messages(TOPIC), total)))


class Devices(_Client):
    """Datagrams in, a TCP stream out, with SF 1: no acknowledgement, but what is delivered is on disk."""

    timing = "devices, UDP; TCP, SF 1"

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        with Broker(folder, "devices") as broker:
            yield str(Address(*broker.door("devices")))

    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        with Publisher(*read(address)) as publisher:
            for payload in paced(begin, rate, total):
                publisher.publish(TOPIC, Kind.STRING, payload)

    def receive(self, address: str, total: int) -> "array[int]":
        ages = array("q")
        with Subscriber(CLIENT, *read(address)) as subscriber:
            subscriber.subscribe(TOPIC, sf=True)
            while len(ages) < total:
                deliveries = subscriber.receive(PATIENCE)
                if not deliveries:
                    raise LoadFailed(
                        f"The devices door delivered {len(ages):,} messages instead of {total:,}."
                    )
                ages.extend(age(delivery.value) for delivery in deliveries)
        return ages


def _put(address: str, begin: int, rate: int, total: int) -> None:
    with stafeta.Client(address, timeout=PATIENCE) as client:
        for payload in paced(begin, rate, total):
            client.put(TOPIC, payload)


def _batches(rows: int) -> list[pa.RecordBatch]:
    """The messages as Arrow data."""
    return [
        pa.record_batch([pa.array(pool()[begin : begin + rows], pa.binary())], ["payload"])
        for begin in range(0, len(pool()), rows)
    ]
