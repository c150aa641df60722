"""Pushing messages to connections: from a feed, through a dialect, into a transport.

1. What is written for many connections is made once: connections that are equally far in the log share the bytes.
2. A connection that does not read costs at most its buffer. The rest stays in the log until the transport asks for
   more.
3. A durable subscription's messages are acknowledged once the peer's kernel has them, since the protocols served here
   have no acknowledgement of their own. What was on its way when a connection broke is delivered again to the next.
4. The connections of a door are served in turn, a few before others on the loop get theirs.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from fcntl import ioctl
from itertools import chain
from struct import unpack
from termios import TIOCOUTQ

from stafeta.broker import Broker
from stafeta.broker.feed import Feed, Span
from stafeta.errors import Lagging, StoreError
from stafeta.message import LAGGING, Batch, Kind, RowBatch

log = logging.getLogger("stafeta.delivery")

SHARED = 8 << 20  # bytes that an encoder keeps for the next connection
TURN = 64  # connections served before others get their turn
SETTLING = 0.05  # seconds between two looks at what the peers have got
NOTICE = 5.0  # seconds in which a connection that lags may read that it does


class Encoder:
    """Messages as one dialect writes them.

    `encode` makes one bytes object for each message of a batch; `stream`, if there is a quicker way than to join those,
    all of a batch in one. A message takes about `overhead` bytes beside its payload.
    """

    def __init__(
        self,
        encode: Callable[[Batch], list[bytes]],
        overhead: int,
        stream: Callable[[Batch], bytes] | None = None,
    ) -> None:
        self._encode = encode
        self._stream = stream or (lambda batch: b"".join(encode(batch)))
        self.overhead = overhead
        self._made: dict[tuple[Batch, ...], bytes] = {}
        self._size = 0

    def encode(self, batches: list[Batch]) -> bytes:
        """The batches' messages in the order in which they were published."""
        if not all(batch.shared for batch in batches):
            return self._join(batches)  # read from the store for one connection alone
        key = tuple(batches)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._join(batches)
            self._size += len(made)
            while self._size > SHARED:
                self._size -= len(self._made.pop(next(iter(self._made))))
        return made

    def _join(self, batches: list[Batch]) -> bytes:
        topic = batches[0].topic
        if all(batch.topic == topic for batch in batches):
            return b"".join(map(self._stream, batches))
        frames = chain.from_iterable(map(self._encode, batches))
        positions = chain.from_iterable(batch.positions for batch in batches)
        return b"".join([frame for _, frame in sorted(zip(positions, frames, strict=True))])


class Carrier:
    """Serves a door's connections; `buffer` is how many bytes may wait for each."""

    def __init__(self, broker: Broker, buffer: int) -> None:
        self.broker = broker
        self.buffer = buffer
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[Delivery] = deque()
        self._unsettled: dict[Delivery, None] = {}

    def wake(self, delivery: "Delivery") -> None:
        if not delivery.waiting:
            delivery.waiting = True
            self._waiting.append(delivery)
            if len(self._waiting) == 1:
                self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting = self._waiting
        for _ in range(min(len(waiting), TURN)):
            # Taken off after it was served: while there are any in the queue, this is scheduled.
            delivery = waiting[0]
            delivery.waiting = False
            try:
                delivery.serve()
            except Exception as error:  # noqa: BLE001 - the others must not suffer for it
                delivery.fail(error)
            waiting.popleft()
        if waiting:
            self.loop.call_soon(self._serve)

    def settle_later(self, delivery: "Delivery") -> None:
        if not self._unsettled:
            self.loop.call_later(SETTLING, self._settle)
        self._unsettled[delivery] = None

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for delivery in unsettled:
            if delivery.settle():
                self.settle_later(delivery)
        self.broker.receipt()  # acknowledgements alone make no commit


class Delivery:
    """One connection's messages. The protocol tells it when the transport pauses, resumes and is gone."""

    __slots__ = (
        "_carrier",
        "_closed",
        "_paused",
        "_reading",
        "_sent",
        "_transport",
        "_unsettled",
        "encoder",
        "feed",
        "waiting",
    )

    def __init__(
        self,
        carrier: Carrier,
        client: str,
        transport: asyncio.Transport,
        encoder: Encoder,
    ) -> None:
        self._carrier = carrier
        self._transport = transport
        self.encoder = encoder
        self.feed: Feed = carrier.broker.feed(client, self._news)
        self.waiting = False
        self._paused = False
        self._closed = False
        self._reading: asyncio.Task[None] | None = None
        self._sent = 0
        # What the peer may not have yet: each the number of bytes sent up to its end, and what it was.
        self._unsettled: deque[tuple[int, list[Span]]] | None = None
        transport.set_write_buffer_limits(carrier.buffer)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._news()

    def _news(self) -> None:
        if not self._closed and (not self._paused or self.feed.lagging is not None):
            self._carrier.wake(self)

    def serve(self) -> None:
        """Write what there is, up to a buffer full."""
        if self._closed or self._reading is not None:
            return
        try:
            batches = self.feed.take(self._carrier.buffer, self.encoder.overhead)
        except Lagging as error:
            self._end(error)
            return
        if batches is None:
            self._reading = self._carrier.loop.create_task(self._read())
        else:
            self._write(batches)

    async def _read(self) -> None:
        try:
            batches = await self.feed.read(self._carrier.buffer, self.encoder.overhead)
            self._reading = None
            if not self._closed:
                self._write(batches)
        except Lagging as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - or the connection would wait for ever
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the connection: there is no other way to tell it."""
        if isinstance(error, StoreError):
            log.error("a connection is closed: %s", error)
        else:
            log.error("a connection is closed, for a reason that it should not have", exc_info=error)
        self._closed = True
        self._transport.abort()

    def _write(self, batches: list[Batch]) -> None:
        if batches:
            data = self.encoder.encode(batches)
            self._transport.write(data)
            self._sent += len(data)
            spans = self.feed.spans(batches)
            if self.feed.durable:
                if self._unsettled is None:
                    self._unsettled = deque()
                self._unsettled.append((self._sent, spans))
                self._carrier.settle_later(self)
            else:
                self.feed.done(spans)
        if self.feed.lagging is not None or (self.feed.ready and not self._paused):
            self._carrier.wake(self)

    @property
    def busy(self) -> bool:
        """True while something is on its way to the peer."""
        return self.settle() or self._transport.get_write_buffer_size() > 0 or self.feed.ready

    def settle(self) -> bool:
        """Acknowledge what the peer has got; true where there is more to come."""
        if self._closed or not self._unsettled or self._transport.is_closing():
            return False
        arrived = self._sent - self._transport.get_write_buffer_size() - _unacknowledged(self._transport)
        while self._unsettled and self._unsettled[0][0] <= arrived:
            self.feed.done(self._unsettled.popleft()[1])
        if not self._unsettled:
            self._unsettled = None  # there are many connections, and an empty queue is not small
        return self._unsettled is not None

    def _end(self, error: Lagging) -> None:
        """Tell a connection that lags, with a last message, and close it."""
        self._closed = True
        log.warning("%s It is disconnected.", error)
        now = self._carrier.broker.now()
        notice = RowBatch(LAGGING, 1, [(0, now, "", "", Kind.STRING, None, str(error).encode())])
        self._transport.write(self.encoder.encode([notice]))
        self._transport.close()  # once it has read all that, if it ever does
        self._carrier.loop.call_later(NOTICE, self._transport.abort)

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
        self.feed.close()


def _unacknowledged(transport: asyncio.Transport) -> float:
    """Bytes with the kernel that the peer's has not acknowledged; more than there are where that cannot be told."""
    try:
        left: int = unpack("i", ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)))[0]
    except (OSError, ValueError):
        return math.inf
    return left
