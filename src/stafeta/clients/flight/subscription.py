"""Subscriptions, as iterators of batches, and their acknowledgements."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from stafeta.clients import forks
from stafeta.clients.flight.channel import Channel, OpenOnChannel, log
from stafeta.clients.flight.signals import Signal, Waiting
from stafeta.clients.flight.stream_reader import StreamReader
from stafeta.errors import DataLoss, Disconnected, NoReply, StafetaError
from stafeta.message import COLUMNS

Ranges = dict[str, list[list[int]]]

# Each request costs the broker a sync of its disk, which others wait for. So they are not made more often than this,
# in seconds, unless somebody waits for them.
_PACE: Final = 0.02
_IDLE: Final = 5.0  # seconds without work after which the thread ends


class Message(NamedTuple):
    """One message. A column that was not asked for is None."""

    topic: str | None
    offset: int | None
    timestamp: datetime | None
    producer: str | None
    source: str | None
    kind: str | None
    payload: bytes | None


class Acks:
    """The acknowledgements of one subscription, in the background: one request at a time, and in it everything that has
    come up since the last one. `mark` gives the mark of the log that they are of."""

    def __init__(
        self, channel: Channel, signal: Signal, client: str, filter: str, mark: Callable[[], str]
    ) -> None:
        self._channel = channel
        self._signal = signal
        self._body = {"client": client, "filter": filter}
        self._mark = mark
        self._void = False
        self._ranges: Ranges = {}
        self._running = False
        self._sending = False
        self._waited_for = 0
        self._next = 0.0
        self._closed = False
        self._error: StafetaError | None = None
        self._trouble: StafetaError | None = None
        self._progress = 0.0

    def add(self, topic: str, start: int, stop: int) -> None:
        """Offsets from `start` up to, not including, `stop`."""
        forks.check_grpc()
        with self._signal.lock:
            if self._void:
                return
            self.check()
            if self._closed:
                raise Disconnected("The subscription was closed; what is acknowledged now comes again.")
            ranges = self._ranges.setdefault(topic, [])
            if ranges and ranges[-1][1] == start:
                ranges[-1][1] = stop
            else:
                ranges.append([start, stop])
            if not self._running:
                self._running = True
                self._progress = time.monotonic()
                threading.Thread(target=self._run, name="stafeta-acks", daemon=True).start()
            self._signal.notify_workers()

    def check(self) -> None:
        """Raises what the broker has refused an acknowledgement with."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def renewed(self) -> "Acks":
        """The same for another log: what is acknowledged here concerns nobody any more. The signal's lock is held."""
        self._void = True
        self.close()
        return Acks(self._channel, self._signal, self._body["client"], self._body["filter"], self._mark)

    def flushing(self, timeout: float | None) -> Waiting[None]:
        """Wait until all of them are on the broker's disk."""
        began = time.monotonic()
        self._waited_for += 1
        self._signal.notify_all()
        try:
            while True:
                self.check()
                if not self._ranges and not self._sending:
                    return
                now = time.monotonic()
                quiet = max(began, self._progress) + self._channel.timeout
                if now >= quiet:
                    raise self._channel.no_reply(self._trouble)
                if timeout is not None and now >= began + timeout:
                    raise self._channel.no_reply(self._trouble, timeout)
                yield (quiet if timeout is None else min(quiet, began + timeout)) - now
        finally:
            self._waited_for -= 1

    def close(self) -> None:
        """Send nothing more. The signal's lock is held."""
        self._closed = True
        self._signal.notify_all()

    # --- the thread that sends

    def _run(self) -> None:
        while (ranges := self._taken()) is not None:
            flat = [[topic, *one] for topic, ones in ranges.items() for one in ones]
            try:
                while not self._sent(flat):
                    pass
            except StafetaError as error:
                log.warning("%s: an acknowledgement was refused: %s", self._channel.address, error)
                with self._signal.lock:
                    self._error = error
                    self._running = self._sending = False
                    self._signal.notify_all()
                return

    def _sent(self, ranges: list[list[object]]) -> bool:
        """Whether the broker has answered, or it does not matter any more."""
        try:
            self._channel.insist("ack", {**self._body, "ranges": ranges, "mark": self._mark()})
            self._progress = time.monotonic()
        except (NoReply, Disconnected) as error:
            self._trouble = error
            return self._closed or self._channel.closed.is_set()
        return True

    def _taken(self) -> Ranges | None:
        """What is to be acknowledged next, when it is time; None where there is nothing, and the thread is to end."""
        with self._signal.lock:
            self._sending = False
            self._signal.notify_all()
            idle = time.monotonic() + _IDLE
            while not self._closed:
                now = time.monotonic()
                if not self._ranges and now >= idle:
                    break
                if self._ranges and (self._waited_for or now >= self._next):
                    ranges, self._ranges = self._ranges, {}
                    self._sending = True
                    self._next = now + _PACE
                    return ranges
                self._signal.pause((self._next if self._ranges else idle) - now)
            self._running = False
            return None


class Received:
    """A batch of messages as a subscription gets them."""

    __slots__ = ("_acks", "_raw", "_topic", "data")

    def __init__(
        self, data: pa.RecordBatch, raw: pa.RecordBatch, acks: Acks | None, topic: str | None
    ) -> None:
        self.data = data
        """The messages, with the columns that were asked for."""
        self._raw = raw
        self._acks = acks
        self._topic = topic

    def __len__(self) -> int:
        return self.data.num_rows

    def rows(self) -> list[Message]:
        """The messages one by one."""
        nothing = [None] * len(self)
        names = self.data.schema.names
        columns = [self.data.column(name).to_pylist() if name in names else nothing for name in COLUMNS]
        return [Message(*row) for row in zip(*columns, strict=True)]

    def payloads(self) -> list[bytes]:
        """The payloads alone."""
        payloads: list[Any] = self.data.column("payload").to_pylist()
        return payloads

    def ack(self, count: int | None = None) -> None:
        """Acknowledge the messages, or the first `count` of them: they do not come again. Goes out in the background;
        `Subscription.flush` tells when it is on disk. A subscription without a name has nothing to acknowledge."""
        part = self._raw if count is None else self._raw.slice(0, count)
        if self._acks is None or not part.num_rows:
            return
        offsets: Any = part.column("offset")
        if self._topic is not None:
            self._acks.add(self._topic, offsets[0].as_py(), offsets[-1].as_py() + 1)
            return
        for topic, first, last in _ends(part.column("topic"), offsets):
            self._acks.add(topic, first, last + 1)


def _ends(topics: Any, offsets: Any) -> Iterator[tuple[str, int, int]]:
    """The first and the last offset of each topic."""
    import pyarrow.compute as pc

    coded = topics.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) > 1:
        offsets = offsets.take(pc.sort_indices(coded.indices))  # stable: a topic's offsets stay in order
    counts = {one["values"]: one["counts"] for one in pc.value_counts(coded.indices).to_pylist()}
    start = 0
    for code, name in enumerate(names):
        stop = start + counts[code]
        yield name, offsets[start].as_py(), offsets[stop - 1].as_py()
        start = stop


class Subscription(OpenOnChannel):
    """The messages of a topic, or of all topics that match a filter, as they come. Made by `Connection.subscribe`.

    With a name it is durable: it goes on where it was, also after a restart of the program or the broker, and gives
    again what was not acknowledged. Within one life nothing comes twice. Without a name it begins anew each time.

    Raises `NoReply` where the broker is not there for `timeout` seconds; the loop may be begun again then. Raises
    `TakenOver` where another program took the name over, and `DataLoss` where the broker has lost messages that came
    before: `accept_loss` goes on then.
    """

    def __init__(
        self,
        channel: Channel,
        reading: StreamReader,
        acks: Acks | None,
        forget: Callable[["Subscription"], None],
    ) -> None:
        self.filter = reading.position.what
        self._channel = channel
        self._reading = reading
        self._signal = reading.signal
        self._acks = acks
        self._forget = forget
        self._is_closed = False

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        found = self._signal.wait(self._next())
        if found is None:
            raise StopIteration
        return found

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every acknowledgement so far is on the broker's disk; not longer than so many seconds."""
        self._signal.wait(self._finishing(timeout))

    def accept_loss(self) -> None:
        """After `DataLoss`, go on with what the broker has. A durable subscription goes on from where the broker's
        cursor is now, and is made again where that is lost too; one without a name begins anew."""
        if self._acks is not None:
            self._channel.ask("subscribe", self._body())
        self._signal.wait(self._restarting())

    def close(self, timeout: float | None = None) -> None:
        """`flush`, and end. May be repeated; `with` does it too. A durable subscription stays at the broker."""
        if self._closed:
            return
        try:
            self.flush(timeout)
        finally:
            self._end()

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: some acknowledgements have no answer: %s", self.filter, error)

    def _next(self) -> Waiting[Received | None]:
        if self._closed:
            raise Disconnected(f"The subscription to {self.filter!r} was closed; make a new one.")
        try:
            if self._acks is not None:
                self._acks.check()
            raw = yield from self._reading.next()
        except DataLoss as error:
            raise DataLoss(f"{error} accept_loss() goes on with what it has.") from None
        if raw is None:
            return None
        position = self._reading.position
        return Received(position.shown(raw), raw, self._acks, position.what if position.one_topic else None)

    def _body(self) -> dict[str, object]:
        position = self._reading.position
        return {"client": position.client, "filter": position.what, "from": position.start}

    def _restarting(self) -> Waiting[None]:
        if self._acks is not None:
            self._acks = self._acks.renewed()
        self._reading.restart()
        yield from self._reading.opening()

    def _finishing(self, timeout: float | None) -> Waiting[None]:
        if self._acks is not None:
            yield from self._acks.flushing(timeout)

    @property
    def _closed(self) -> bool:
        return self._is_closed or forks.is_forked()

    def _end(self) -> None:
        if forks.is_forked():
            return
        self._is_closed = True
        self._reading.close()
        if self._acks is not None:
            with self._signal.lock:
                self._acks.close()
        self._forget(self)
