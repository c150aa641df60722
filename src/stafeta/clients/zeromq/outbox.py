"""Putting exactly once: everything goes through the outbox, which empties in order.

1. A batch is on disk before it is sent, under the sequence it will always be sent with.
2. What an earlier run left in the outbox goes first.
3. Up to `window` batches are on their way at once. When one is refused, those behind it on its topic have come too
   early and were not stored either; all replies are awaited before any of their sequences is used again.
"""

import logging
from collections import deque
from typing import NamedTuple

from stafeta.clients.zeromq import replies, requests
from stafeta.clients.zeromq.client_state import ClientState
from stafeta.clients.zeromq.replies import Nak
from stafeta.clients.zeromq.request_channel import Dialogue, Request, RequestChannel
from stafeta.clients.zeromq.requests import Entry, PublishBatch
from stafeta.errors import Unavailable

_log = logging.getLogger("stafeta.client")
_REMEDIES = 3


class Receipt(NamedTuple):
    """How many messages were put, and the ids of the first and the last (0 where there were none)."""

    total: int
    first: int
    last: int


class PutProgress:
    """What became of the messages of one call."""

    __slots__ = ("first", "last", "total")

    def __init__(self) -> None:
        self.total = 0
        self.first = 0
        self.last = 0

    def note(self, total: int, first: int, last: int) -> None:
        self.total += total
        self.first = self.first or first
        self.last = last

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.total, self.first, self.last)


class Outbox:
    """The outbox of a state and the batches of it that are on their way."""

    def __init__(self, state: ClientState, channel: RequestChannel, window: int) -> None:
        self._state = state
        self._channel = channel
        self._window = window
        self._flights: deque[tuple[Entry, Request]] = deque()
        self._progress: dict[int, PutProgress] = {}
        self._sent = 0
        self._remedies = 0

    def take(self, topic: str, batch: PublishBatch, progress: PutProgress) -> Dialogue[None]:
        """Keeps a batch and sees it, or one before it, on its way."""
        self._state.add(topic, batch)
        self._progress[self._state.last_number] = progress
        yield from self._advance(self._window)

    def settle(self) -> Dialogue[None]:
        """Waits until everything is answered."""
        yield from self._advance(0)

    def reset(self) -> None:
        """Starts over from what is on disk. The calls that are waiting will not hear of it."""
        self._rewind()
        self._progress.clear()
        self._remedies = 0

    def _advance(self, on_their_way: int) -> Dialogue[None]:
        while True:
            waiting = self._sent < self._state.last_number
            if waiting and len(self._flights) < self._window:
                self._send_next()
            elif waiting or len(self._flights) > on_their_way:
                yield from self._reap()
            else:
                return

    def _send_next(self) -> None:
        entry = self._state.after(self._sent)
        if entry is None:
            self._sent = self._state.last_number
            return
        self._sent = entry.number
        request = self._channel.send(requests.put(self._state.identity, entry))
        self._flights.append((entry, request))

    def _reap(self) -> Dialogue[None]:
        entry, request = self._flights[0]
        frame = yield from self._channel.reply(request)
        try:
            first, last = replies.stored(frame)
        except Nak as nak:
            yield from self._land()
            self._remedy(entry, nak)
            return
        self._flights.popleft()
        self._answered(entry, first, last)

    def _answered(self, entry: Entry, first: int, last: int) -> None:
        self._state.done(entry)
        self._remedies = 0
        progress = self._progress.pop(entry.number, None)
        if progress is not None:
            progress.note(entry.batch.length, first, last)

    def _land(self) -> Dialogue[None]:
        """Awaits all replies; what was not stored is to be sent again."""
        for entry, request in self._flights:
            frame = yield from self._channel.reply(request)
            try:
                first, last = replies.stored(frame)
            except Nak:
                continue
            self._answered(entry, first, last)
        self._rewind()

    def _rewind(self) -> None:
        self._flights.clear()
        self._sent = 0

    def _remedy(self, entry: Entry, nak: Nak) -> None:
        if nak.retry:
            raise Unavailable(str(nak)) from None
        expected = nak.expected
        self._remedies += 1
        if expected is None or expected > entry.sequence or self._remedies > _REMEDIES:
            self._give_up(entry, nak)
        elif expected == 1 < entry.sequence:
            _log.warning(
                "The broker at %s has lost what this client put before. Going on under a new identity.",
                self._channel.address,
            )
            self._state.change_identity()
        elif expected < entry.sequence:
            _log.warning(
                "The broker at %s has lost %d messages that this client put on %s. Going on after them.",
                self._channel.address,
                entry.sequence - expected,
                entry.topic,
            )
            self._state.recount(entry.topic, expected)

    def _give_up(self, entry: Entry, nak: Nak) -> None:
        self._remedies = 0
        if entry.number in self._progress:
            self._state.drop_from(entry)
            self._progress.clear()
            raise nak
        # It was put by a call that has ended: nobody is there to be told but the log.
        self._state.drop(entry)
        _log.warning(
            "The broker refused %d of the messages for %s that were kept from earlier: %s",
            entry.batch.length,
            entry.topic,
            nak,
        )
