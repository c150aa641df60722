"""What a producer was given and has not sent yet, until it becomes batches.

1. Rows wait in one list, which is only ever appended to and cut at the front: taking one needs no lock.
2. They become a batch when there are enough of them, when the first has waited for `linger` seconds, or when somebody
   is in a hurry. While an earlier batch has no answer they wait for it, since what comes meanwhile can go together:
   for the broker many small batches are more work than a few, and in the end they would all take longer.
3. Whoever takes a row notifies only at the alarm: so many bytes have come, or so many rows are there. Where nothing
   waits any row is the alarm.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from reprlib import repr as shown
from typing import Any, Final

import pyarrow as pa

from stafeta.clients import forks
from stafeta.clients.flight.batching import PublishRequest
from stafeta.clients.flight.data import PIECE, of_arrow, of_rows, one_batch
from stafeta.clients.flight.sender import Sender
from stafeta.errors import Disconnected, InvalidMessage, StafetaError

_ROW: Final = 50  # bytes that a row takes as a Python object besides its payload


class Rows:
    """The rows of one topic. `sender` is who carries them, and is to be set."""

    def __init__(self, topic: str, batch_rows: int, linger: float, max_memory: int, kind: str | None) -> None:
        self.request = PublishRequest()
        self.failure: StafetaError | None = None  # why no batch can be made any more
        self.closed = False
        self.crowded = False
        self.hurry = 0  # up to this row, do not linger
        self.sender: Sender
        self._topic = topic
        self._batch_rows = batch_rows
        self._linger = linger
        self._max_memory = max_memory
        self._kind = kind
        self._list: list[str | bytes] = []
        self._cutting = threading.Lock()  # held while rows become a batch, and taken before the signal's lock
        self._cut_rows = 0
        self._in = 0  # bytes that came, counted by whoever appends, and that were cut
        self._out = 0
        self._since: float | None = None  # when the first of the rows was noticed
        self._alarm = 0
        self._full = 0

    # --- taking

    def append(self, payload: str | bytes) -> bool:
        """Take a message; whether there is no more room. One call of it is made for every message."""
        try:
            self._in += len(payload) + _ROW
        except TypeError:
            raise InvalidMessage(f"{shown(payload)} is no message; a message is str or bytes.") from None
        rows = self._list
        rows.append(payload)
        if self._in >= self._alarm or len(rows) >= self._full:
            return self._ring()
        return False

    def extend(self, payloads: Iterable[str | bytes]) -> Iterator[bool]:
        """Take messages in portions; after each, whether there is no more room."""
        if isinstance(payloads, str | bytes):
            raise InvalidMessage(f"{shown(payloads)} is one message; send it, or give a list of messages.")
        self.check()
        iterator = iter(payloads)
        given = 0
        while portion := list(islice(iterator, self._batch_rows)):
            wrong = None
            try:
                size = _size(portion)
                if full := len(portion) == self._batch_rows:
                    batches = self._batches(portion, size)
                else:
                    _check_text(portion)
            except InvalidMessage as error:
                portion, wrong = _before(portion, error)
                size, full = _size(portion), False
            given += len(portion)
            if full:
                with self._cutting:
                    self._cut_all()
                    self._add(batches, len(portion), 0)
                yield not self.has_room()
            elif portion:
                self._in += size
                self._list.extend(portion)
                yield self._ring()
            if wrong is not None:
                raise InvalidMessage(f"Message {given + 1} is not taken, and none after it: {wrong}")

    def write(self, data: Any) -> bool:
        """Take Arrow data; whether there is no more room."""
        self.check()
        batches = list(of_arrow(data, self._kind))
        with self._cutting:
            self._cut_all()
            self._add(batches, sum(batch.num_rows for batch in batches), 0)
        return not self.has_room()

    @property
    def taken(self) -> int:
        """How many rows were taken."""
        forks.check_grpc()
        with self._cutting:
            return self._cut_rows + len(self._list)

    def has_room(self) -> bool:
        return self.sender.queue.size + self._in - self._out <= self._max_memory

    def check(self) -> None:
        """Raises where nothing more can be taken."""
        forks.check_grpc()
        if self.closed:
            raise Disconnected(f"The producer on {self._topic!r} was closed; make a new one.")
        self.request.check()
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def close(self) -> None:
        """Take nothing more. The signal's lock is held."""
        self.closed = True
        self.be_alarmed()

    def be_alarmed(self) -> None:
        """Let the next row notify_all."""
        self._alarm = self._full = 0

    def _ring(self) -> bool:
        """Wake the thread that sends; whether there is no more room."""
        forks.check_grpc()
        with self.sender.signal.lock:
            self.check()
            if not self._waits():
                self._alarm = self._in + PIECE // 4
                self._full = len(self._list) + self._batch_rows
                self.sender.wake()
            return not self.has_room()

    def _waits(self) -> bool:
        """Whether rows are to wait for an answer: nobody has to be woken for them, and the answer is told of them."""
        return self.sender.queue.written > 0 and self.due() is None and self.crowded

    # --- becoming batches: what the sender asks for

    def due(self) -> float | None:
        self.be_alarmed()
        self.crowded = False
        rows = len(self._list)
        if not rows or self.request.error is not None or self.failure is not None:
            self._since = None
            return None
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._linger - now
        enough = rows >= self._batch_rows or self._in - self._out >= PIECE or not self.has_room()
        if enough or self.closed or self.hurry > self._cut_rows:
            return 0.0
        self.crowded = self.sender.queue.written > 0
        if left <= 0 and not self.crowded:
            return 0.0
        self._alarm = self._out + PIECE
        self._full = self._batch_rows
        return None if self.crowded else left

    def cut(self) -> None:
        with self._cutting:
            self._cut()

    def fail(self, error: StafetaError) -> None:
        self.failure = error
        self._list.clear()
        self._out = self._in

    def _cut_all(self) -> None:
        while self._list:
            self._cut()

    def _cut(self) -> None:
        """Make a batch of the first rows. Cutting is locked."""
        portion = self._list[: self._batch_rows]
        if not portion:
            return
        self._since = None
        wrong: InvalidMessage | None = None
        try:
            size = _size(portion)
            batches = self._batches(portion, size)
        except InvalidMessage as error:
            portion, why = _before(portion, error)
            size = _size(portion)
            batches = list(of_rows(portion, self._kind))
            wrong = InvalidMessage(
                f"Message {self._cut_rows + len(portion) + 1} of this producer is not sent, and none after it: {why}"
            )
        del self._list[: len(portion)]
        self._add(batches, len(portion), size)
        if wrong is not None:
            raise wrong

    def _batches(self, portion: list[str | bytes], size: int) -> list[pa.RecordBatch]:
        if size < PIECE:
            return [one_batch(portion, self._kind)]
        return list(of_rows(portion, self._kind))

    def _add(self, batches: list[pa.RecordBatch], rows: int, size: int) -> None:
        """Hand batches over, which were rows of so many bytes. Cutting is locked."""
        with self.sender.signal.lock:
            self.request.check()
            for batch in batches:
                self.sender.add(self.request, self._topic, batch)
            self._cut_rows += rows
            self._out += size
            if not self._list:
                self._out = self._in  # several threads that append may have miscounted


def _check_text(rows: list[str | bytes]) -> None:
    """Refuses text that cannot be encoded; cheaper than to make a batch."""
    try:
        b"".join(rows)  # type: ignore[arg-type]
    except TypeError:
        try:
            "".join(rows).encode()  # type: ignore[arg-type]
        except (TypeError, UnicodeEncodeError):  # bytes are among them, or it is refused
            one_batch(rows)


def _before(rows: list[str | bytes], error: InvalidMessage) -> tuple[list[str | bytes], InvalidMessage]:
    """The rows before the first that is no message, and what is wrong with that one."""
    for at, row in enumerate(rows):
        try:
            _size([row])
            one_batch([row])
        except InvalidMessage as wrong:
            return rows[:at], wrong
    raise error


def _size(rows: list[str | bytes]) -> int:
    try:
        return sum(map(len, rows)) + _ROW * len(rows)
    except TypeError:
        wrong = next(row for row in rows if type(row) not in (str, bytes))
        raise InvalidMessage(f"{shown(wrong)} is no message; a message is str or bytes.") from None
