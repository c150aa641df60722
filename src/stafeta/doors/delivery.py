"""Pushing messages to connections: from a consumer, through a dialect, into a transport.

1. What is written for many connections is made once: connections that are equally far in the log share the bytes.
2. A connection that does not read costs at most its buffer. The rest stays in the log until the transport asks for
   more.
3. A durable subscription's messages are acknowledged once the peer's kernel has them, since the protocols served here
   have no acknowledgement of their own. What was on its way when a connection broke is delivered again to the next.
4. The connections of a door are served in turn, a few before others on the loop get theirs.
5. Where messages are of one size, programs read that many bytes at a time and take what they get for a message. For
   them whole messages are written, in portions that travel in one segment and fit the peer's window: whatever has
   arrived is whole messages.
"""

import asyncio
import errno
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Callable
from fcntl import ioctl
from itertools import chain
from struct import unpack, unpack_from
from termios import TIOCOUTQ

from stafeta.broker import Gate, Verbs
from stafeta.broker.consumer import Consumer, Span
from stafeta.doors.tls import TlsLayer
from stafeta.errors import Lagging, StafetaError, StoreDamaged, StoreError
from stafeta.message import DAMAGED, LAGGING, Batch, Kind, RowBatch

log = logging.getLogger("stafeta.delivery")

SHARED = 8 << 20  # bytes that an encoder holds for the next connection: batches, and what it made of them
TURN = 64  # connections served before others get their turn
SETTLING = 0.05  # seconds between two looks at what the peers have got
SEGMENT = 32_000  # bytes that go into one segment on loopback, also while the peer's window is small
RETRY_INTERVAL = 0.005  # seconds until a portion is tried again that there was no room for
NOTICE = 30.0  # seconds in which a connection that lags may read that it does


TCP_INFO = getattr(socket, "TCP_INFO", 11)
# Where tcpi_snd_mss and tcpi_snd_wnd are in struct tcp_info of <linux/tcp.h>.
_SEND_SEGMENT, _SEND_WINDOW = 16, 228
MSG_EOR = getattr(socket, "MSG_EOR", 0)  # nothing is joined to what was sent so


class Encoder:
    """Messages as one dialect writes them.

    `encode` makes one bytes object for each message of a batch; `stream`, if there is a quicker way than to join those,
    all of a batch in one. A message takes about `overhead` bytes beside its payload; where each takes the same room,
    that is its `unit`.
    """

    def __init__(
        self,
        encode: Callable[[Batch], list[bytes]],
        overhead: int,
        stream: Callable[[Batch], bytes] | None = None,
        unit: int = 0,
    ) -> None:
        self.unit = unit
        self._encode = encode
        self._stream = stream or (lambda batch: b"".join(encode(batch)))
        self.overhead = overhead
        self._made: dict[tuple[Batch, ...], tuple[bytes, int]] = {}  # and what the entry holds
        self._held = 0

    def encode(self, batches: list[Batch]) -> bytes:
        """The batches' messages in the order in which they were published."""
        if not all(batch.shared for batch in batches):
            return self._join(batches)  # read from the store for one connection alone
        key = tuple(batches)
        known = self._made.get(key)
        if known is not None:
            return known[0]
        made = self._join(batches)
        held = len(made) + sum([batch.held for batch in batches])
        self._made[key] = made, held
        self._held += held
        while self._held > SHARED:
            self._held -= self._made.pop(next(iter(self._made)))[1]
        return made

    def _join(self, batches: list[Batch]) -> bytes:
        topic = batches[0].topic
        if all(batch.topic == topic for batch in batches):
            return b"".join(map(self._stream, batches))
        frames = chain.from_iterable(map(self._encode, batches))
        positions = chain.from_iterable(batch.positions for batch in batches)
        return b"".join([frame for _, frame in sorted(zip(positions, frames, strict=True))])


class Dispatcher:
    """Serves a door's connections; `buffer` is how many bytes may wait for each."""

    def __init__(self, broker: Gate, buffer: int) -> None:
        self.broker = broker
        self.buffer = buffer
        self.loop = asyncio.get_running_loop()
        self.lagging = 0  # connections that were ended since they did not keep up
        self._waiting: deque[PushSession] = deque()
        self._unsettled: dict[PushSession, None] = {}

    def wake(self, session: "PushSession") -> None:
        if not session.waiting:
            session.waiting = True
            self._waiting.append(session)
            if len(self._waiting) == 1:
                self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting = self._waiting
        for _ in range(min(len(waiting), TURN)):
            # Taken off after it was served: while there are any in the queue, this is scheduled.
            session = waiting[0]
            session.waiting = False
            try:
                session.serve()
            except Exception as error:  # noqa: BLE001 - the others must not suffer for it
                session.fail(error)
            waiting.popleft()
        if waiting:
            self.loop.call_soon(self._serve)

    def settle_later(self, session: "PushSession") -> None:
        if not self._unsettled:
            self.loop.call_later(SETTLING, self._settle)
        self._unsettled[session] = None

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for session in unsettled:
            if session.settle():
                self.settle_later(session)
        self.broker.commit()  # acknowledgements alone make no commit


class PushSession:
    """One connection's messages. The protocol tells it when the transport pauses, resumes and is gone."""

    __slots__ = (
        "_acknowledges",
        "_closed",
        "_dispatcher",
        "_paused",
        "_reading",
        "_sent",
        "_transport",
        "_unit",
        "_unsent",
        "_unsettled",
        "consumer",
        "encoder",
        "unmarked",
        "waiting",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        verbs: Verbs,
        client: str,
        transport: asyncio.Transport,
        encoder: Encoder,
        *,
        acknowledges: bool = True,
        unbounded_lag: bool = False,
    ) -> None:
        """With `acknowledges` what the peer has got is done with; else whoever is durable says so by himself. For
        `unbounded_lag` see `Consumer`."""
        self._dispatcher = dispatcher
        self._acknowledges = acknowledges
        self._transport = transport
        self.encoder = encoder
        # In its place while a topic is set aside, for who says how far he is by one position: he would acknowledge
        # unseen what waits behind the damage.
        self.unmarked: Encoder | None = None
        self.consumer: Consumer = verbs.consumer(client, self._on_ready, unbounded_lag=unbounded_lag)
        self.waiting = False
        self._paused = False
        self._closed = False
        self._reading: asyncio.Task[None] | None = None
        self._sent = 0
        # What the peer may not have yet: each the number of bytes sent up to its end, and what it was.
        self._unsettled: deque[tuple[int, list[Span]]] | None = None
        self._unsent: memoryview | None = None  # whole messages that the peer has no room for yet
        self._unit = encoder.unit
        if isinstance(transport, TlsLayer):  # which has to encrypt, and keeps messages whole by its records
            transport.unit, self._unit = encoder.unit, 0
        transport.set_write_buffer_limits(dispatcher.buffer)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._on_ready()

    def _on_ready(self) -> None:
        if not self._closed and (not self._paused or self.consumer.lagging is not None):
            self._dispatcher.wake(self)

    def serve(self) -> None:
        """Write what there is, up to a buffer full."""
        if self._closed or self._reading is not None:
            return
        if self._unsent is not None and self.consumer.lagging is None:
            return
        try:
            batches = self.consumer.take(self._dispatcher.buffer, self.encoder.overhead)
        except Lagging as error:
            self._end(error)
            return
        if batches is None:
            self._reading = self._dispatcher.loop.create_task(self._read())
        else:
            self._write(batches)

    async def _read(self) -> None:
        try:
            batches = await self.consumer.read(self._dispatcher.buffer, self.encoder.overhead)
            self._reading = None
            if not self._closed:
                self._write(batches)
        except Lagging as error:
            self._end(error)
        except StoreDamaged as error:
            self._reading = None
            log.error("client %r cannot be sent everything: %s", self.consumer.client, error)
            if not self._closed:
                self._notify(DAMAGED, error)
                self._on_ready()  # the rest goes on
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
            encoder = self.encoder
            if self.unmarked is not None and self.consumer.sets_aside:
                encoder = self.unmarked
            data = encoder.encode(batches)
            self._sent += len(data)
            if self._unit:
                self._write_whole(data)
            else:
                self._transport.write(data)
            spans = self.consumer.spans(batches)
            if self.consumer.durable:
                if not self._acknowledges:
                    self._go_on()
                    return
                if self._unsettled is None:
                    self._unsettled = deque()
                self._unsettled.append((self._sent, spans))
                self._dispatcher.settle_later(self)
            else:
                self.consumer.done(spans)
        self._go_on()

    def _go_on(self) -> None:
        if self.consumer.lagging is not None or (self.consumer.ready and not self._paused):
            self._dispatcher.wake(self)

    def _write_whole(self, data: bytes) -> None:
        """Write whole messages, past the transport, which would cut and join them as it likes. It has nothing to write
        meanwhile: this is all that such a connection is sent."""
        self._unsent = memoryview(data)
        self._send()

    def _send(self) -> None:
        if self._transport.is_closing():
            return
        assert self._unsent is not None
        unit = self._unit
        try:
            # A copy of the descriptor: the transport's own socket does not lend itself to this.
            with socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())) as peer:
                while self._unsent and (size := min(SEGMENT, _room(peer, unit)) // unit * unit):
                    begun = len(self._unsent) % unit  # what is left of a message that the kernel took in part
                    size += begun - unit if begun else 0
                    sent = peer.send(self._unsent[:size], socket.MSG_DONTWAIT | MSG_EOR)
                    self._unsent = self._unsent[sent:]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EMFILE, errno.ENFILE):  # these pass
                self._transport.abort()
                return
        if self._unsent:
            self._dispatcher.loop.call_later(RETRY_INTERVAL, self._send)
            return
        self._unsent = None
        if self._closed:  # that was the last of it
            self._transport.close()
        self._on_ready()

    @property
    def _waiting_bytes(self) -> int:
        """Bytes that were written and are not with the kernel."""
        return self._transport.get_write_buffer_size() + len(self._unsent or b"")

    @property
    def busy(self) -> bool:
        """True while something is on its way to the peer."""
        return self.settle() or self._waiting_bytes > 0 or self.consumer.ready

    def settle(self) -> bool:
        """Acknowledge what the peer has got; true where there is more to come."""
        if self._closed or not self._unsettled or self._transport.is_closing():
            return False
        arrived = self._sent - self._waiting_bytes - _unacknowledged(self._transport)
        while self._unsettled and self._unsettled[0][0] <= arrived:
            self.consumer.done(self._unsettled.popleft()[1])
        if not self._unsettled:
            self._unsettled = None  # there are many connections, and an empty queue is not small
        return self._unsettled is not None

    def _end(self, error: Lagging) -> None:
        """Tell a connection that lags, with a last message, and close it."""
        self._closed = True
        self._dispatcher.lagging += 1
        log.warning("%s It is disconnected.", error)
        self._dispatcher.loop.call_later(NOTICE, self._transport.abort)
        self._notify(LAGGING, error)
        if not self._unit:
            self._transport.close()  # once it has read all that, if it ever does

    def _notify(self, topic: str, error: StafetaError) -> None:
        """Tell the connection, with a message of the broker's own."""
        now = self._dispatcher.broker.now()
        notice = RowBatch(topic, 1, [(0, now, "", "", Kind.STRING, None, str(error).encode())])
        data = self.encoder.encode([notice])
        self._sent += len(data)
        if not self._unit:
            self._transport.write(data)
        elif self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
        else:
            self._write_whole(data)

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
        self.consumer.close()


def _unacknowledged(transport: asyncio.Transport) -> float:
    """Bytes with the kernel that the peer's has not acknowledged; more than there are where the system does not say."""
    try:
        return _outstanding(transport.get_extra_info("socket").fileno())
    except (OSError, ValueError):
        return math.inf


def _outstanding(descriptor: int) -> int:
    left: int = unpack("i", ioctl(descriptor, TIOCOUTQ, bytes(4)))[0]
    return left


def _room(peer: socket.socket, unit: int) -> int:
    """How many bytes to send now: so many that the peer's buffer is never full. What does not fit it is sent in part
    after a while, wherever that ends."""
    info = peer.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _SEND_WINDOW + 4)
    if len(info) < _SEND_WINDOW + 4:  # the kernel does not tell
        return SEGMENT
    window: int = unpack_from("I", info, _SEND_WINDOW)[0]
    segment: int = unpack_from("I", info, _SEND_SEGMENT)[0]  # at most half of the largest window there was
    outstanding = _outstanding(peer.fileno())
    return max(window - outstanding - segment // 2, 0 if outstanding else unit)
