"""A producer: takes messages one by one, and sends them in batches."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from stafeta.clients import forks
from stafeta.clients.flight.channel import Channel, log
from stafeta.clients.flight.rows import Rows
from stafeta.clients.flight.sender import Sender
from stafeta.clients.flight.signals import Waiting
from stafeta.errors import StafetaError

EXIT_TIMEOUT: Final = 2.0  # seconds that one waits at most when leaving because of an error


class Producer:
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
            log.warning("%s: %d rows have no answer: %s", self.topic, self.sent - self.acknowledged, second)

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
