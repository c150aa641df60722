"""What is on its way to the broker: batches, numbered, each part of an order."""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from stafeta.errors import OutOfSequence, StafetaError


class Order:
    """What was handed over together, and what has become of it."""

    __slots__ = ("acknowledged", "error", "first", "last", "parcels")

    def __init__(self) -> None:
        self.parcels = 0  # that are not answered yet
        self.acknowledged = 0  # rows
        self.first: int | None = None
        self.last: int | None = None
        self.error: StafetaError | None = None

    def check(self) -> None:
        """Raises where the broker refused a part of it."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def answered(self, offset: int | None, rows: int) -> None:
        self.parcels -= 1
        self.acknowledged += rows
        if offset is not None and rows:
            self.first = offset if self.first is None else self.first
            self.last = offset + rows - 1


class Parcel:
    """A batch, and the producer's number of its first row on its topic."""

    __slots__ = ("batch", "order", "rows", "sequence", "size", "topic")

    def __init__(self, order: Order, topic: str, sequence: int, batch: pa.RecordBatch) -> None:
        self.order = order
        self.topic = topic
        self.sequence = sequence
        self.batch = batch
        self.rows = batch.num_rows
        self.size = batch.nbytes


class Parcels:
    """The parcels that are not answered yet, in order; the first `written` of them are on their way."""

    def __init__(self, expected: dict[str, int]) -> None:
        self.size = 0  # bytes
        self.written = 0
        self._queue: deque[Parcel] = deque()
        self._expected = expected  # the number of each topic's next row; 1 where it is not there

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Parcel]:
        return iter(self._queue)

    @property
    def first(self) -> Parcel:
        return self._queue[0]

    @property
    def oldest(self) -> Parcel | None:
        return self._queue[0] if self._queue else None

    @property
    def next(self) -> Parcel | None:
        """The first that is not on its way."""
        return self._queue[self.written] if self.written < len(self._queue) else None

    def add(self, order: Order, topic: str, batch: pa.RecordBatch) -> None:
        parcel = Parcel(order, topic, self._expected.get(topic, 1), batch)
        self._expected[topic] = parcel.sequence + parcel.rows
        self._queue.append(parcel)
        self.size += parcel.size
        order.parcels += 1

    def answered(self, offset: int | None) -> Parcel:
        """The first one is stored."""
        parcel = self._queue.popleft()
        self.written -= 1
        self.size -= parcel.size
        parcel.order.answered(offset, parcel.rows)
        return parcel

    def refuse(self, error: StafetaError) -> None:
        """The first one is not, and with it goes its order. What comes after it on its topic moves up: nothing of that
        can have been stored, since the broker takes no number before those below it. A broker that expects another
        number, since it has lost what it had, gets that."""
        refused = self.first
        refused.order.error = error
        gone = [parcel for parcel in self._queue if parcel.order is refused.order]
        self._queue = deque(parcel for parcel in self._queue if parcel.order is not refused.order)
        self.size = sum(parcel.size for parcel in self._queue)
        self.written = 0
        for topic in {parcel.topic for parcel in gone}:
            number = min(parcel.sequence for parcel in gone if parcel.topic == topic)
            if isinstance(error, OutOfSequence) and topic == refused.topic:
                number = error.expected
            for parcel in self._queue:
                if parcel.topic == topic and parcel.sequence > number:
                    parcel.sequence, number = number, number + parcel.rows
                elif parcel.topic == topic:
                    number = max(number, parcel.sequence + parcel.rows)
            self._expected[topic] = number


class Source(Protocol):
    """Rows that are not yet batches."""

    crowded: bool
    """Whether they wait for an answer to an earlier batch."""

    def due(self) -> float | None:
        """In how many seconds they are to become one, 0 for now; None where there are none. The bell is held."""

    def cut(self) -> None:
        """Makes a batch of them, and adds it. The bell is not held."""

    def fail(self, error: StafetaError) -> None:
        """No batch can be made of them. The bell is held."""
