"""Subscriptions, as iterators of batches."""

from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from stafeta.clients import forks
from stafeta.clients.flight.acks import Acks
from stafeta.clients.flight.channel import Channel, log
from stafeta.clients.flight.producer import EXIT_TIMEOUT
from stafeta.clients.flight.read_position import COLUMNS
from stafeta.clients.flight.signals import Waiting
from stafeta.clients.flight.stream_reader import StreamReader
from stafeta.errors import DataLoss, Disconnected, StafetaError


class Message(NamedTuple):
    """One message. A column that was not asked for is None."""

    topic: str | None
    offset: int | None
    timestamp: datetime | None
    producer: str | None
    source: str | None
    kind: str | None
    payload: bytes | None


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


class Subscription:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(min(EXIT_TIMEOUT, self._channel.timeout))
        except StafetaError as second:
            log.warning("%s: some acknowledgements have no answer: %s", self.filter, second)

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
