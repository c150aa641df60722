"""What publishes: a producer, which takes messages one by one and sends them in batches; what `Connection.publish`
sends through; and transactions, whose messages become visible together, and once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from stafeta.clients import forks
from stafeta.clients.closing import Finishing
from stafeta.clients.flight.batching import PublishRequest
from stafeta.clients.flight.channel import Channel, OpenOnChannel, log
from stafeta.clients.flight.data import Data, batches, by_topic, for_staging
from stafeta.clients.flight.rows import Rows
from stafeta.clients.flight.sender import Sender
from stafeta.clients.flight.signals import Waiting
from stafeta.errors import InvalidMessage, StafetaError

PART: Final = "main"


class Producer(OpenOnChannel):
    """Sends messages to one topic, each stored once, in the order in which they were given.

    Made by `Connection.producer`. What it is given it keeps until the broker has it on disk, and sends again as often
    as the connection breaks or the broker is restarted. It does so in the background: `flush` tells when it is done.

    Raises `NoReply` where the broker does not answer for `timeout` seconds while it has to wait: nothing is lost then.
    It goes on trying, and what was given to it must not be given again. Once the broker has refused a message it raises
    what it was refused with, and is of no more use.
    """

    def __init__(
        self,
        channel: Channel,
        topic: str,
        name: str,
        count: int,
        rows: Rows,
        forget: Callable[["Producer"], None],
    ) -> None:
        self.topic = topic
        self.name = name
        self._channel = channel
        self._base = count
        self._rows = rows
        self._forget = forget
        self._sender = Sender(channel, {"topic": topic, "producer": name}, {topic: count + 1}, rows)
        self._signal = self._sender.signal
        rows.sender = self._sender

    def send(self, payload: str | bytes) -> None:
        """Take one message. Waits while `max_memory` bytes are on their way."""
        if self._rows.append(payload):
            self._signal.wait(self._room())

    def send_many(self, payloads: Iterable[str | bytes]) -> None:
        """Take many; quicker than `send` in a loop."""
        for full in self._rows.extend(payloads):
            if full:
                self._signal.wait(self._room())

    def write(self, data: Any) -> None:
        """Take Arrow data, or what offers it, with a column payload: no row of it becomes a Python object."""
        if self._rows.write(data):
            self._signal.wait(self._room())

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was taken so far is on the broker's disk; not longer than so many seconds."""
        self._signal.wait(self._finishing(timeout))

    def close(self, timeout: float | None = None) -> None:
        """`flush`, and end. May be repeated; `with` does it too, and waits a few seconds at most where it is left by an
        error."""
        if self._closed:
            return
        try:
            self.flush(timeout)
        finally:
            self._end()

    @property
    def sent(self) -> int:
        """How many messages were given to it."""
        return self._rows.taken

    @property
    def acknowledged(self) -> int:
        """How many of them the broker has on disk."""
        return self._rows.request.acknowledged

    @property
    def count(self) -> int:
        """How many messages of a producer of this name the broker has stored on this topic, ever."""
        return self._base + self._rows.request.acknowledged

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: %d rows have no answer: %s", self.topic, self.sent - self.acknowledged, error)

    # --- what the asyncio twin needs too

    @property
    def _closed(self) -> bool:
        return self._rows.closed or forks.is_forked()

    def _room(self) -> Waiting[None]:
        return self._sender.waiting(self._rows.has_room, self._rows.request)

    def _finishing(self, timeout: float | None) -> Waiting[None]:
        """Wait until everything that was taken till now is stored. The signal's lock is not held, until it waits."""
        return self._flushing(self.sent, timeout)

    def _flushing(self, target: int, timeout: float | None) -> Waiting[None]:
        rows, request = self._rows, self._rows.request
        if request.acknowledged < target:
            rows.hurry = max(rows.hurry, target)
            self._sender.wake()
        # What comes before a message that cannot be sent is, before that is told.
        yield from self._sender.waiting(
            lambda: request.acknowledged >= target or (rows.failure is not None and not request.unanswered),
            request,
            timeout,
        )
        if rows.failure is not None:
            raise rows.failure.with_traceback(None)

    def _end(self) -> None:
        if forks.is_forked():
            return
        with self._signal.lock:
            self._rows.close()
            self._sender.close()
        self._forget(self)


@dataclass(frozen=True, slots=True)
class Published:
    """Where messages were stored: the first and the last offset, and how many they are. Others' messages may be between
    them. The offsets are None where there are several topics, or no message, or they were sent again so late that the
    broker does not remember."""

    first: int | None
    last: int | None
    count: int


class Publisher:
    """What `Connection.publish` sends through: a producer of every topic, for as long as the connection lives."""

    def __init__(self, channel: Channel) -> None:
        self._sender = Sender(channel, {"producer": f"{uuid4().hex}"})
        self._signal = self._sender.signal

    def publishing(self, topic: str | None, data: Data, kind: str | None) -> Waiting[Published]:
        """Hand over what there is, and wait until it is stored."""
        found = batches(data, kind)
        if topic is not None and not isinstance(topic, str):
            raise InvalidMessage(f"A topic is text, not {topic!r}.")
        parts = (
            [(topic, one) for one in found]
            if topic is not None
            else [p for one in found for p in by_topic(one)]
        )
        request = PublishRequest()
        with self._signal.lock:
            for name, batch in parts:
                self._sender.add(request, name, batch)
        return self._waiting(request, len({name for name, _ in parts}) == 1)

    def _waiting(self, request: PublishRequest, one_topic: bool) -> Waiting[Published]:
        yield from self._sender.waiting(lambda: not request.unanswered, request)
        if not one_topic:
            return Published(None, None, request.acknowledged)
        return Published(request.first, request.last, request.acknowledged)

    def close(self, timeout: float | None = None) -> None:
        """Wait for what nobody waits for any more, not longer than so many seconds, and end."""
        try:
            self._signal.wait(self._finishing(timeout))
        finally:
            self._end()

    def _finishing(self, timeout: float | None) -> Waiting[None]:
        return self._sender.waiting(lambda: not self._sender.queue, PublishRequest(), timeout)

    def _end(self) -> None:
        with self._signal.lock:
            self._sender.close()


class Transaction(Finishing):
    """Made by `Connection.transaction`. What is written is durable, but seen by nobody until `commit`.

    `with` commits in the end, and aborts where it is left by an error. A producer commits its transactions in order, by
    their counters: a program that was killed asks for one anew, and gets the one that was not committed again, empty.
    Raises `TakenOver` where another program has begun it anew.
    """

    def __init__(
        self,
        channel: Channel,
        producer: str,
        counter: int,
        attempt: int | None,
        forget: "Callable[[Transaction], None]",
    ) -> None:
        self.producer = producer
        self.counter = counter
        self.attempt = attempt
        """Which beginning of it this is; workers that join it name it too."""
        self.parts: list[str] = []
        """The parts that were written here."""
        self._channel = channel
        self._forget = forget
        self._senders: dict[str, Sender] = {}

    def write(self, topic: str | None, data: Data, part: str = PART, kind: str | None = None) -> int:
        """Put messages aside for a topic; returns how many, once they are on disk. Without a topic, a column topic
        names one for each row. Workers that write side by side name parts of their own, and whoever commits names those
        that count."""
        sender = self._sender(part)
        return sender.signal.wait(self._writing(sender, topic, batches(data, kind)))

    def commit(
        self,
        parts: Sequence[str] | Mapping[str, int] | None = None,
        *,
        label: str | None = None,
        forget_after: int | None = None,
    ) -> bool:
        """Make the parts visible: those written here, unless others are named. With a number of rows for each, they
        must have so many. False where that was done before.

        `Connection.label` gives the label back, for the last 1,000 that a producer has written. Who will not use the
        producer's name again says after how many seconds the broker may forget it."""
        done = self._committing(parts, label, forget_after).result()
        return bool(done[0]["committed"])

    def abort(self) -> None:
        """Drop everything."""
        self._aborting().result()

    def _complete(self) -> None:
        self.commit()

    def _abandon(self) -> None:
        self.abort()

    def _log_unfinished(self, error: StafetaError) -> None:
        log.warning("%s: transaction %d was not aborted: %s", self.producer, self.counter, error)

    def _sender(self, part: str) -> Sender:
        if part not in self._senders:
            self._senders[part] = Sender(self._channel, {"stage": {**self._names(), "part": part}})
            self.parts.append(part)
        return self._senders[part]

    def _writing(self, sender: Sender, topic: str | None, found: list[Any]) -> Waiting[int]:
        request = PublishRequest()
        for batch in found:
            for name, rows in for_staging(batch) if topic is None else [(topic, batch)]:
                sender.add(request, name, rows)
        yield from sender.waiting(lambda: not request.unanswered, request)
        return request.acknowledged

    def _committing(
        self,
        parts: Sequence[str] | Mapping[str, int] | None,
        label: str | None = None,
        forget_after: int | None = None,
    ) -> "Future[list[dict[str, Any]]]":
        self._end()
        body = {**self._names(), "parts": self.parts if parts is None else parts}
        more = {"label": label, "forget_after": forget_after}
        return self._channel.start("commit", body | {name: value for name, value in more.items() if value})

    def _aborting(self) -> "Future[list[dict[str, Any]]]":
        self._end()
        return self._channel.start("abort", self._names())

    def _names(self) -> dict[str, Any]:
        names: dict[str, Any] = {"producer": self.producer, "counter": self.counter}
        return names if self.attempt is None else {**names, "attempt": self.attempt}

    def _end(self) -> None:
        """Nothing more is written. The signals' locks are not held."""
        forks.check_grpc()
        self._forget(self)
        for sender in self._senders.values():
            with sender.signal.lock:
                sender.close()


def begun(answer: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The counter and the attempt of a transaction that the broker has begun."""
    return int(answer[0]["counter"]), int(answer[0]["attempt"])
