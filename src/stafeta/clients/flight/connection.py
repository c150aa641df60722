"""The native client: a connection to a broker's Flight door. (docs/flight-client.md)"""

import atexit
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4
from weakref import WeakSet

import pyarrow as pa
from pyarrow import flight

from stafeta.addresses import FLIGHT
from stafeta.clients import forks
from stafeta.clients.closing import EXIT_TIMEOUT
from stafeta.clients.flight.channel import Channel, OpenOnChannel, log
from stafeta.clients.flight.data import Data
from stafeta.clients.flight.producer import Producer, Published, Publisher, Transaction, begun
from stafeta.clients.flight.read_position import ReadPosition, StartOffset
from stafeta.clients.flight.rows import Rows
from stafeta.clients.flight.signals import left
from stafeta.clients.flight.stream_reader import StreamReader
from stafeta.clients.flight.subscription import Acks, Subscription
from stafeta.clients.tls import Tls
from stafeta.errors import ConfigError, StafetaError

BATCH_ROWS: Final = 10_000
LINGER: Final = 0.005
MAX_MEMORY: Final = 64 << 20
_LEAVING: Final = 0.5  # seconds that threads which are about to end are waited for when Python does
MAX_RANGES: Final = 1000  # of offsets in one acknowledgement


class TopicInfo(NamedTuple):
    """A topic of the broker: the lowest offset that it holds, and the one that the next message gets. Offsets that are
    `skipped`, each from, up to but not including, have no messages: they are damaged, or a backup was restored."""

    topic: str
    first: int
    next: int
    rows: int
    subscribers: int
    skipped: Sequence[tuple[int, int]] = ()


class CursorInfo(NamedTuple):
    """How far a subscriber has come on a topic: everything below `floor` is acknowledged, and the ranges `above` it,
    each from, up to but not including. `first` and `next` are the topic's, as of the same instant."""

    topic: str
    floor: int
    above: tuple[tuple[int, int], ...]
    first: int
    next: int


class SubscriptionInfo(NamedTuple):
    """A durable subscription. The client is named as the broker knows it: `flight/<name>`, `devices/<id>`, …"""

    client: str
    filter: str
    cursors: tuple[CursorInfo, ...]


def connect(
    address: str = FLIGHT,
    *,
    timeout: float = 30.0,
    token: str | None = None,
    tls: Tls | None = None,
    user: str | None = None,
    password: str | None = None,
) -> "Connection":
    """Connect to a broker's Flight door. Waits until it answers; where it does not within `timeout` seconds, this and
    everything else that waits raises `NoReply`. An address `grpc+tls://…` is for TLS, with certificates as `tls` says.
    A token, or a user and a password, go with each call. What is not given the environment says: `STAFETA_TOKEN`,
    `STAFETA_CA`, …"""
    connection = Connection(address, timeout=timeout, token=token, tls=tls, user=user, password=password)
    connection.stats()
    log.info("%s: connected.", connection.address)
    return connection


class Connection(OpenOnChannel):
    """A way to a broker, for any number of threads. Whatever breaks on it is mended, and tried again."""

    def __init__(
        self,
        address: str = FLIGHT,
        *,
        timeout: float = 30.0,
        token: str | None = None,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._channel = Channel(address, timeout, token, tls, user=user, password=password)
        self._publisher = Publisher(self._channel)
        self._open: set[Producer | Subscription | StreamReader | Transaction] = set()
        _connections.add(self)
        forks.guard(self)

    @property
    def address(self) -> str:
        return self._channel.address

    def publish(self, topic: str | None, data: Data, *, kind: str | None = None) -> Published:
        """Store messages, each once; returns once they are on the broker's disk. `data` is a list of messages (str,
        bytes; a dictionary or list goes as JSON), or Arrow data or a DataFrame with a column payload, or a Series.
        Without a topic, a column topic names one for each row.

        Where it raises `NoReply`, the connection goes on trying for as long as it is open: do not publish it again.
        """
        self._channel.check()
        return self._publisher._signal.wait(self._publisher.publishing(topic, data, kind))

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        batch_rows: int = BATCH_ROWS,
        linger: float = LINGER,
        max_memory: int = MAX_MEMORY,
        kind: str | None = None,
    ) -> Producer:
        """A producer for a topic. It sends a batch when `batch_rows` messages are there, or `linger` seconds after the
        first; more than `max_memory` bytes it does not hold. One with a name, which no other program uses at the same
        time, can go on after its program was killed: `count` tells how many messages are stored."""
        numbers = None if name is None else self._channel.ask("sequence", {"producer": name, "topic": topic})
        return self._producer(topic, name, numbers, batch_rows, linger, max_memory, kind)

    def read(
        self,
        topic: str,
        *,
        start: StartOffset = None,
        end: StartOffset = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """What a topic, or all topics that match a filter, hold: from `start` up to, not including, `end`, which are
        offsets or times."""
        reading = self._reading(ReadPosition(topic, start=start, end=end, columns=columns, limit=limit))
        try:
            schema = reading.signal.wait(reading.opening())
            return pa.Table.from_batches(list(self._batches(reading)), schema)
        finally:
            self._end(reading)

    def batches(
        self,
        topic: str,
        *,
        start: StartOffset = None,
        end: StartOffset = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same in batches, of which a few are in memory at a time. With `follow` it goes on with what comes."""
        reading = self._reading(
            ReadPosition(topic, start=start, end=end, columns=columns, limit=limit, follow=follow)
        )
        try:
            yield from self._batches(reading)
        finally:
            self._end(reading)

    def subscribe(
        self,
        filter: str,
        *,
        name: str | None = None,
        start: str = "latest",
        columns: Sequence[str] | None = None,
        follow: bool = True,
    ) -> Subscription:
        """Subscribe to a topic, or to all topics that match a filter: durably under a name. `start` counts for a new
        subscription only, which begins with what is published from now on, or with what is there (`"earliest"`).
        Without `follow` it ends at what is there."""
        check_start(start)
        if name is not None:
            self.hold(filter, name=name, start=start)
        subscription = self._subscription(filter, name, start, columns, follow)
        reading = subscription._reading
        try:
            reading.signal.wait(reading.opening())
        except BaseException:
            subscription.close(0.0)
            raise
        return subscription

    def unsubscribe(self, filter: str, *, name: str) -> None:
        """End a durable subscription: what the broker held for it is released."""
        self._channel.ask("unsubscribe", {"client": name, "filter": filter})

    def hold(self, filter: str, *, name: str, start: str = "latest") -> None:
        """Make a durable subscription, without reading: the broker holds what comes. To repeat it changes nothing."""
        check_start(start)
        self._channel.ask("subscribe", {"client": name, "filter": filter, "from": start})

    def cursors(self, filter: str, *, name: str) -> dict[str, int]:
        """How far a durable subscription has come: for each topic the offset below which everything is acknowledged."""
        return floors(self._channel.ask("cursors", {"client": name, "filter": filter}))

    def subscriptions(self) -> list[SubscriptionInfo]:
        """The durable subscriptions at the broker, through whichever door they were made."""
        return subscription_infos(self._channel.ask("subscriptions"))

    def acknowledge(self, filter: str, done: Mapping[str, int], *, name: str, mark: str = "") -> None:
        """For a durable subscription, everything below these offsets of topics is done with; returns once that is on
        the broker's disk. With a mark, of the log that has it alone."""
        for ranges in portions(done):
            self._channel.ask("ack", {"client": name, "filter": filter, "ranges": ranges, "mark": mark})

    def check(self, marks: Sequence[str]) -> None:
        """Raises `DataLoss` where the broker's log is not the one, or not any more, that one of these marks is of."""
        self._channel.ask("check", {"marks": list(marks)})

    def topics(self, filter: str | None = None) -> list[TopicInfo]:
        """The broker's topics, or those that match a filter."""
        return topic_infos(self._channel.ask("topics", {} if filter is None else {"filter": filter}))

    def describe(self, command: Mapping[str, object]) -> flight.FlightInfo:
        """What the door says of a topic or filter: its `get_flight_info` for this command."""
        return self._channel.describe(command).result()

    def stats(self) -> dict[str, Any]:
        """What the broker says of itself."""
        return self._channel.ask("stats")[0]

    def transaction(
        self, producer: str, counter: int | None = None, attempt: int | None = None
    ) -> Transaction:
        """Begin the next transaction of a producer, which drops what was written for it before. Or join the one with
        this counter, and with the attempt of whoever began it."""
        if counter is None:
            return self._transaction(producer, *begun(self._channel.ask("begin", {"producer": producer})))
        return self._transaction(producer, counter, attempt)

    def committed(self, producer: str) -> int | None:
        """The counter of the last transaction that a producer has committed; None where there is none."""
        counter: int | None = self._channel.ask("committed", {"producer": producer})[0]["counter"]
        return counter

    def label(self, producer: str, counter: int) -> str | None:
        """The label with which a transaction was committed; None where it had none, or is not known any more."""
        body = {"producer": producer, "counter": counter}
        label: str | None = self._channel.ask("committed", body)[0]["label"]
        return label

    def close(self, timeout: float | None = None) -> None:
        """Close what was opened on it, and end. May be repeated; `with` does it too. Does nothing in a process that was
        forked meanwhile."""
        errors: list[StafetaError] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for one in self._unfinished():
                try:
                    one.close(left(deadline))
                except StafetaError as error:
                    errors.append(error)
        finally:
            self._shut()
        if errors:
            raise errors[0]

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: not everything was sent: %s", self.address, error)

    def __del__(self) -> None:
        if hasattr(self, "_publisher") and not forks.is_forked() and not self._channel.closed.is_set():
            # On a thread of its own, since this one may be anywhere, holding any lock.
            with suppress(RuntimeError):  # Python is ending
                threading.Thread(target=self._shut, name="stafeta-closing", daemon=True).start()

    # --- what the asyncio twin needs too

    def _transaction(self, producer: str, counter: int, attempt: int | None) -> Transaction:
        transaction = Transaction(self._channel, producer, counter, attempt, self._forget)
        self._open.add(transaction)
        return transaction

    def _forget(self, one: Producer | Subscription | Transaction) -> None:
        self._open.discard(one)

    def _unfinished(self) -> list[Producer | Subscription | Publisher]:
        if forks.is_forked() or self._channel.closed.is_set():
            return []
        return [*(one for one in self._open if isinstance(one, Producer | Subscription)), self._publisher]

    def _forked(self) -> None:
        _connections.discard(self)
        for one in self._open:
            if isinstance(one, Producer):
                one._rows.be_alarmed()

    def _shut(self) -> None:
        if forks.is_forked():
            return
        for one in tuple(self._open):
            if isinstance(one, StreamReader):
                self._end(one)
            else:
                one._end()
        self._channel.close()
        self._publisher._end()
        _connections.discard(self)

    def _producer(
        self,
        topic: str,
        name: str | None,
        numbers: list[dict[str, Any]] | None,
        batch_rows: int,
        linger: float,
        max_memory: int,
        kind: str | None,
    ) -> Producer:
        if batch_rows < 1 or linger < 0 or max_memory < 1:
            raise ConfigError("batch_rows and max_memory are at least 1, and linger is not below 0.")
        self._channel.check()
        producer = Producer(
            self._channel,
            topic,
            uuid4().hex if name is None else name,
            0 if numbers is None else int(numbers[0]["next"]) - 1,
            Rows(topic, batch_rows, linger, max_memory, kind),
            self._forget,
        )
        self._open.add(producer)
        return producer

    def _reading(self, position: ReadPosition) -> StreamReader:
        self._channel.check()
        reading = StreamReader(self._channel, position)
        self._open.add(reading)
        return reading

    def _batches(self, reading: StreamReader) -> Iterator[pa.RecordBatch]:
        while (batch := reading.signal.wait(reading.next())) is not None:
            yield reading.position.shown(batch)

    def _end(self, reading: StreamReader) -> None:
        reading.close()
        self._open.discard(reading)

    def _subscription(
        self, filter: str, name: str | None, start: str, columns: Sequence[str] | None, follow: bool
    ) -> Subscription:
        self._channel.check()
        position = ReadPosition(filter, client=name, start=start, columns=columns, follow=follow)
        reading = StreamReader(self._channel, position)
        acks = (
            None if name is None else Acks(self._channel, reading.signal, name, filter, lambda: position.log)
        )
        subscription = Subscription(self._channel, reading, acks, self._forget)
        self._open.add(subscription)
        return subscription


def check_start(start: str) -> None:
    if start not in ("latest", "earliest"):
        raise ConfigError(f"A subscription starts at 'latest' or 'earliest', not {start!r}.")


def portions(done: Mapping[str, int]) -> Iterator[list[list[object]]]:
    """What acknowledges everything below these offsets, in requests that are not too large."""
    ranges: list[list[object]] = [[topic, None, offset] for topic, offset in done.items()]
    for start in range(0, len(ranges), MAX_RANGES):
        yield ranges[start : start + MAX_RANGES]


def topic_infos(results: list[dict[str, Any]]) -> list[TopicInfo]:
    return [
        TopicInfo(
            result["topic"],
            result["first"],
            result["next"],
            result["rows"],
            result["subscribers"],
            [(start, stop) for start, stop in result.get("skipped", ())],
        )
        for result in results
    ]


def subscription_infos(results: list[dict[str, Any]]) -> list[SubscriptionInfo]:
    return [
        SubscriptionInfo(
            result["client"],
            result["filter"],
            tuple(
                CursorInfo(
                    one["topic"],
                    one["floor"],
                    tuple((start, stop) for start, stop in one["above"]),
                    one["first"],
                    one["next"],
                )
                for one in result["cursors"]
            ),
        )
        for result in results
    ]


def floors(results: list[dict[str, Any]]) -> dict[str, int]:
    return {result["topic"]: result["floor"] for result in results}


_connections: WeakSet[Connection] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads that are in the middle of a call when Python ends could take the program down."""
    for connection in tuple(_connections):
        try:
            connection.close(EXIT_TIMEOUT)
        except StafetaError as error:
            log.warning("%s: not everything was sent: %s", connection.address, error)
    deadline = time.monotonic() + _LEAVING
    for thread in threading.enumerate():
        if thread.name.startswith("stafeta-"):
            while thread.ident is None and left(deadline):  # Ctrl-C came while it was being started
                time.sleep(0.001)
            if thread.ident is not None:
                thread.join(left(deadline))
