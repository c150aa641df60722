"""What is on its way to the broker: batches, numbered, each part of a request to publish."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from stafeta.errors import OutOfSequence, StafetaError


class PublishRequest:
    """What was handed over together, and what has become of it."""

    __slots__ = ("acknowledged", "error", "first", "last", "unanswered")

    def __init__(self) -> None:
        self.unanswered = 0  # that are not answered yet
        self.acknowledged = 0  # rows
        self.first: int | None = None
        self.last: int | None = None
        self.error: StafetaError | None = None

    def check(self) -> None:
        """Raises where the broker refused a part of it."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def answered(self, offset: int | None, rows: int) -> None:
        self.unanswered -= 1
        self.acknowledged += rows
        if offset is not None and rows:
            self.first = offset if self.first is None else self.first
            self.last = offset + rows - 1


class PublishBatch:
    """A batch, and the producer's number of its first row on its topic. One without a topic has a column that names
    them, and the number is among the rows of all topics."""

    __slots__ = ("batch", "counts", "request", "rows", "sequence", "size", "topic")

    def __init__(self, request: PublishRequest, topic: str | None, batch: pa.RecordBatch) -> None:
        self.request = request
        self.topic = topic
        self.sequence = 0
        self.batch = batch
        self.rows = batch.num_rows
        self.size = batch.nbytes
        self.counts: dict[str | None, int] = {None: self.rows}
        """Rows of each topic, and of all."""
        if topic is None:
            self.counts.update(Counter(batch.column("topic").to_pylist()))
        else:
            self.counts[topic] = self.rows


class PublishQueue:
    """The batches that are not answered yet, in order; the first `written` of them are on their way."""

    def __init__(self, expected: dict[str, int]) -> None:
        self.size = 0  # bytes
        self.written = 0
        self._queue: deque[PublishBatch] = deque()
        self._expected = expected  # the number of each topic's next row; 1 where it is not there
        self._next = 1  # the same among the rows of all

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PublishBatch]:
        return iter(self._queue)

    @property
    def first(self) -> PublishBatch:
        return self._queue[0]

    @property
    def oldest(self) -> PublishBatch | None:
        return self._queue[0] if self._queue else None

    @property
    def next(self) -> PublishBatch | None:
        """The first that is not on its way."""
        return self._queue[self.written] if self.written < len(self._queue) else None

    def add(self, request: PublishRequest, topic: str | None, batch: pa.RecordBatch) -> None:
        one = PublishBatch(request, topic, batch)
        one.sequence = self._of(topic)
        for name, rows in one.counts.items():
            self._set(name, self._of(name) + rows)
        self._queue.append(one)
        self.size += one.size
        request.unanswered += 1

    def _of(self, topic: str | None) -> int:
        return self._next if topic is None else self._expected.get(topic, 1)

    def _set(self, topic: str | None, number: int) -> None:
        if topic is None:
            self._next = number
        else:
            self._expected[topic] = number

    def answered(self, offset: int | None) -> PublishBatch:
        """The first one is stored."""
        one = self._queue.popleft()
        self.written -= 1
        self.size -= one.size
        one.request.answered(offset, one.rows)
        return one

    def refuse(self, error: StafetaError) -> None:
        """The first one is not stored, and its whole request fails. What comes after it on its topic moves up: nothing
        of that can have been stored, since the broker takes no number before those below it. A broker that expects
        another number, since it has lost what it had, gets that."""
        refused = self.first
        refused.request.error = error
        for one in self._queue:
            for topic, rows in one.counts.items():
                self._set(topic, self._of(topic) - rows)
        self._queue = deque(one for one in self._queue if one.request is not refused.request)
        self.size = sum(one.size for one in self._queue)
        self.written = 0
        if isinstance(error, OutOfSequence):
            self._set(refused.topic, error.expected)
        for one in self._queue:
            one.sequence = self._of(one.topic)
            for topic, rows in one.counts.items():
                self._set(topic, self._of(topic) + rows)


class Source(Protocol):
    """Rows that are not yet batches."""

    crowded: bool
    """Whether they wait for an answer to an earlier batch."""

    def due(self) -> float | None:
        """In how many seconds they are to become one, 0 for now; None where there are none. The lock is held."""

    def cut(self) -> None:
        """Makes a batch of them, and adds it. The signal's lock is not held."""

    def fail(self, error: StafetaError) -> None:
        """No batch can be made of them. The signal's lock is held."""
