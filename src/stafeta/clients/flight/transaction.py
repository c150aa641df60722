"""Transactions: messages of any number of topics that become visible together, and once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self

from stafeta.clients import forks
from stafeta.clients.flight.batching import PublishRequest
from stafeta.clients.flight.channel import Channel, log
from stafeta.clients.flight.data import Data, batches, for_staging
from stafeta.clients.flight.sender import Sender
from stafeta.clients.flight.signals import Waiting
from stafeta.errors import StafetaError

PART: Final = "main"


class Transaction:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except StafetaError as second:
            log.warning("%s: transaction %d was not aborted: %s", self.producer, self.counter, second)

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
