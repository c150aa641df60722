"""Acknowledging in the background: one request at a time, and in it everything that has come up since the last one."""

import threading
import time
from collections.abc import Callable
from typing import Final

from stafeta.clients import forks
from stafeta.clients.flight.channel import Channel, log
from stafeta.clients.flight.signals import Signal, Waiting
from stafeta.errors import Disconnected, NoReply, StafetaError

Ranges = dict[str, list[list[int]]]

# Each request costs the broker a sync of its disk, which others wait for. So they are not made more often than this,
# in seconds, unless somebody waits for them.
_PACE: Final = 0.02
_IDLE: Final = 5.0  # seconds without work after which the thread ends


class Acks:
    """The acknowledgements of one subscription. `mark` gives the mark of the log that they are of."""

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
