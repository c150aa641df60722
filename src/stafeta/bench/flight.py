"""The Flight door: a producer and a durable subscription of `stafeta.connect`.

1. Rows that go together are made, sent, received and looked at as Arrow data: none becomes a Python object. A few are
   quicker as Python objects.
2. As fast as possible, several batches are on their way at a time. With a rate it is one: what becomes due meanwhile
   goes together in the next.
"""

import secrets
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

import stafeta
from stafeta.bench import clients, message_header
from stafeta.bench.delivery_stats import DeliveryStats
from stafeta.bench.histogram import STEPS
from stafeta.bench.plan import DOORS, Plan
from stafeta.bench.schedule import Burst
from stafeta.errors import Disconnected, StafetaError

_FEW: Final = 64  # rows
_AHEAD: Final = 16  # batches that are on their way
_LEAST_MEMORY: Final = 1 << 20
_POLL_INTERVAL: Final = 0.001  # seconds between two looks at what is acknowledged
_PATIENCE: Final = 5.0  # seconds for which they are worth it
_HEAD = struct.Struct("<qq")
_EIGHT: Final = pa.binary(8)

# Its stubs do not know that a scalar can stand beside an array.
compute: Any = pyarrow.compute


class Publisher(clients.Publisher):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan, number)
        self._filler = bytes(plan.size - _HEAD.size)
        self._counting = pa.array(range(max(plan.batch, DOORS["flight"].batch)), pa.int64())
        self._broker = stafeta.connect(f"{'grpc+tls' if plan.tls else 'grpc'}://{plan.address}")
        self._producer = self._broker.producer(
            plan.topic,
            batch_rows=max(plan.batch, _FEW),
            linger=0.0,
            max_memory=max(_AHEAD * plan.batch * plan.size, _LEAST_MEMORY),
        )
        # Connected and known to the broker, and nothing is done for the first time afterwards.
        self._producer.write(self._batch(Burst(0, [(0, _FEW)])))
        self._producer.flush()
        self._sent = self._producer.acknowledged
        self._waiting: deque[tuple[int, Burst]] = deque()  # how many rows are acknowledged when the burst is

    def publish(self, burst: Burst) -> None:
        total = burst.total
        self._sent += total
        self._waiting.append((self._sent, burst))
        if total < _FEW:
            self._producer.send_many(self._rows(burst))
        else:
            self._producer.write(
                self._batch(burst)
            )  # waits for an acknowledgement where too many are on their way
        if self.plan.rate:
            self._producer.flush()
        self._note_acknowledged()

    def finish(self) -> None:
        patience = time.monotonic() + _PATIENCE
        while self._waiting and time.monotonic() < patience:
            time.sleep(_POLL_INTERVAL)
            self._note_acknowledged()
        self._producer.flush()
        self._note_acknowledged()
        self._broker.close()

    def _note_acknowledged(self) -> None:
        acknowledged, now = self._producer.acknowledged, time.monotonic_ns()
        while self._waiting and self._waiting[0][0] <= acknowledged:
            self.note(self._waiting.popleft()[1], now)

    def _rows(self, burst: Burst) -> list[bytes]:
        number = message_header.number_of(self.number, burst.first)
        times = [time for time, count in burst.groups for _ in range(count)]
        return [_HEAD.pack(time, number + at) + self._filler for at, time in enumerate(times)]

    def _batch(self, burst: Burst) -> pa.RecordBatch:
        number = message_header.number_of(self.number, burst.first)
        times = pa.concat_arrays(
            [pa.repeat(pa.scalar(time, pa.int64()), count) for time, count in burst.groups]
        )
        numbers = compute.add(self._counting[: burst.total], number)
        payloads = compute.binary_join_element_wise(
            times.view(_EIGHT).cast(pa.binary()),
            numbers.view(_EIGHT).cast(pa.binary()),
            pa.scalar(self._filler, pa.binary()),
            pa.scalar(b"", pa.binary()),
        )
        return pa.RecordBatch.from_arrays([payloads], ["payload"])


class Subscriber(clients.Subscriber):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._name = f"bench-{secrets.token_hex(4)}"
        self._broker = stafeta.connect(f"{'grpc+tls' if plan.tls else 'grpc'}://{plan.address}")
        self._subscription = self._broker.subscribe(plan.topic, name=self._name, columns=["payload"])
        take(
            pa.array([bytes(plan.size)] * _FEW), plan.size, DeliveryStats(0), 1
        )  # so that later is not the first time

    def receive(self, stats: DeliveryStats) -> None:
        try:
            for batch in self._subscription:
                take(batch.data.column("payload"), self.plan.size, stats, time.monotonic_ns())
                batch.ack()
        except Disconnected:
            if not self.leaving.is_set():
                raise

    def leave(self) -> None:
        super().leave()
        with suppress(StafetaError):  # then the broker is gone, and it may be why this ends
            self._subscription.close()

    def close(self) -> None:
        with suppress(StafetaError):
            self._broker.unsubscribe(self.plan.topic, name=self._name)
            self._broker.close()


def take(payloads: Any, size: int, stats: DeliveryStats, now: int) -> None:
    """Counts messages that have come together."""
    if len(payloads) < _FEW:
        rows = payloads.to_pylist()
        if any(len(row) != size for row in rows):
            raise message_header.stranger()
        stats.take([_HEAD.unpack_from(row) for row in rows], now)
        return
    try:
        fixed = payloads.cast(pa.binary(size))
    except pa.ArrowInvalid:
        raise message_header.stranger() from None
    times, numbers = (
        compute.binary_slice(fixed, begin, begin + 8).cast(_EIGHT).view(pa.int64()) for begin in (0, 8)
    )
    ours = compute.greater_equal(times, stats.begin)
    if not compute.all(ours).as_py():
        times, numbers = times.filter(ours), numbers.filter(ours)
    if len(times):
        _take_latencies(compute.subtract(now, times), stats)
        _take_numbers(numbers, stats)
        stats.note(len(times), now)


def _take_latencies(latencies: Any, stats: DeliveryStats) -> None:
    """Into the same buckets as `Histogram.add`."""
    logarithms = compute.log2(compute.max_element_wise(latencies, 1).cast(pa.float64()))
    buckets = compute.floor(compute.multiply(logarithms, float(STEPS))).cast(pa.int32()).value_counts()
    counts = dict(zip(*(buckets.field(name).to_pylist() for name in ("values", "counts")), strict=True))
    stats.latency.add_buckets(counts, compute.max(latencies).as_py())


def _take_numbers(numbers: Any, stats: DeliveryStats) -> None:
    """Numbers come in rows, of one publisher after the other: one step for each row."""
    breaks = compute.not_equal(compute.pairwise_diff(numbers), 1).fill_null(False)
    begins = [0, *compute.indices_nonzero(breaks).to_pylist()]
    for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
        stats.take_numbers(numbers[begin].as_py(), end - begin)
