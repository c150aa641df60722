"""One connection of the frames door. (docs/protocols/frames.md)

1. What comes together is published together, with one receipt. A connection that has much to say takes turns with the
   others.
2. There is nothing in the protocol to say no with. Bytes that cannot be read, or messages that cannot be stored, end
   the connection; a command that is readable but cannot be carried out is logged and skipped.
3. What comes behind a listTopics waits until that is answered, and the answer has been read. So a topic that was
   published to before is in it, and a peer that only asks costs no memory.
"""

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

from stafeta.broker.names import check_filter, is_filter
from stafeta.doors.delivery import Delivery
from stafeta.doors.frames.codec import (
    NOTICES,
    Command,
    Commands,
    ListTopics,
    Publish,
    Subscribe,
    Unsubscribe,
    topics_frame,
)
from stafeta.errors import InvalidFrame, InvalidName, Lagging, NotSubscribed, StafetaError
from stafeta.logs import fields
from stafeta.message import Kind, RowBatch

if TYPE_CHECKING:
    from stafeta.doors.frames.server import FramesDoor

log = logging.getLogger("stafeta.frames")

PORTION: Final = 256  # commands before other connections get their turn
NOTICE: Final = 5.0  # seconds for a connection that is closed to read what is on its way

# Why nothing is read from a connection for now.
TURN: Final = 1  # it has said much, and others come first
CONGESTED: Final = 2  # much waits to become durable
ASKED: Final = 4  # it has asked for the topics
UNREAD: Final = 8  # it has not read the answer


class Connection(asyncio.Protocol):
    __slots__ = (
        "_commands",
        "_delivery",
        "_door",
        "_held",
        "_number",
        "_paused",
        "_peer",
        "_skipped",
        "_transport",
    )

    def __init__(self, door: "FramesDoor") -> None:
        self._door = door
        self._number = next(door.numbers)
        self._commands = Commands()
        self._delivery: Delivery | None = None
        self._held = 0
        self._paused = False
        self._skipped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._peer = f"{host}:{port}"
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._door.connections[self] = None

    # --- commands

    def data_received(self, data: bytes) -> None:
        self._commands.add(data)
        if not self._held and not self._transport.is_closing():
            self._work()

    def _work(self) -> None:
        """Carry out what has come, for one turn."""
        changed = asked = False
        for _ in range(PORTION):
            try:
                command = self._commands.next()
            except InvalidFrame as error:
                self._end("the connection is closed: %s", error)
                break
            if command is None:
                break
            if isinstance(command, ListTopics):
                asked = True
                break
            changed = self._do(command) or changed
        else:
            self._hold(TURN)
            self._door.loop.call_soon(self._release, TURN)
        self._settle(changed=changed, asked=asked)

    def _do(self, command: Command) -> bool:
        """Returns whether there is something to be made durable."""
        broker = self._door.broker
        try:
            match command:
                case Publish(topic, kind, payload):
                    broker.publish(topic, payload, kind, self._peer, create=True, keep_last=True)
                case Subscribe(topic):
                    self._subscribe(topic)
                case Unsubscribe(topic):
                    self._unsubscribe(topic)
        except StafetaError as error:
            self._skip(error)
            return False
        return True

    def _settle(self, *, changed: bool, asked: bool) -> None:
        broker = self._door.broker
        if self._delivery is not None and self._commands.serializer is not None:
            self._delivery.encoder = self._door.encoder(self._commands.serializer, self._commands.key)
        if changed:
            broker.receipt().add_done_callback(self._stored)
        if self._transport.is_closing():
            return
        if asked:
            self._hold(ASKED)
            broker.receipt().add_done_callback(self._answer)
        if broker.congested:
            self._hold(CONGESTED)
            broker.receipt().add_done_callback(self._clear)

    def _stored(self, receipt: "asyncio.Future[None]") -> None:
        if receipt.exception() is not None:
            self._end("the connection is closed, what it said could not be stored: %s", receipt.exception())

    def _skip(self, why: object) -> None:
        self._skipped += 1
        level = logging.WARNING if self._skipped == 1 else logging.DEBUG
        log.log(level, "a command is skipped: %s", why, extra=fields(peer=self._peer))

    def _end(self, sentence: str, why: object) -> None:
        if not self._transport.is_closing():
            log.warning(sentence, why, extra=fields(peer=self._peer))
            self._leave()

    # --- subscriptions

    def _subscribe(self, topic: str) -> None:
        if self._delivery is None:
            assert self._commands.serializer is not None
            self._delivery = self._door.carrier.delivery(
                f"frames/{self._number}",
                self._transport,
                self._door.encoder(self._commands.serializer, self._commands.key),
                self._lags,
            )
            if self._paused:
                self._delivery.pause()
        last_of = None if is_filter(topic) else topic
        self._delivery.feed.subscribe(_filter(topic), durable=False, last_of=last_of)

    def _unsubscribe(self, topic: str) -> None:
        try:
            if self._delivery is not None:
                self._delivery.feed.unsubscribe(_filter(topic))
        except NotSubscribed as error:
            log.debug("%s", error, extra=fields(peer=self._peer))

    def _lags(self, error: Lagging) -> None:
        log.warning("%s It is disconnected.", error, extra=fields(peer=self._peer))
        now = self._door.broker.now()
        notice = RowBatch(NOTICES, 1, [(0, now, "", "", Kind.STRING, None, str(error).encode())])
        assert self._delivery is not None
        self._transport.write(self._delivery.encoder.encode([notice]))
        self._leave()

    # --- listTopics

    def _answer(self, _: "asyncio.Future[None]") -> None:
        if self._transport.is_closing():
            return
        assert self._commands.serializer is not None
        names = self._door.topics()
        answer, told = topics_frame(self._commands.serializer, self._commands.key, names)
        if told < len(names):
            self._door.warn(
                "an answer to listTopics has only the topics that fit", told=told, topics=len(names)
            )
        self._transport.write(answer)
        if self._paused:
            self._hold(UNREAD)
        self._release(ASKED)

    # --- pace

    def _hold(self, reason: int) -> None:
        if not self._held:
            self._transport.pause_reading()
        self._held |= reason

    def _release(self, reason: int) -> None:
        self._held &= ~reason
        if not self._held and not self._transport.is_closing():
            self._work()
            self._resume()

    def _resume(self) -> None:
        if not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def _clear(self, _: "asyncio.Future[None]") -> None:
        if self._door.broker.congested:
            self._door.broker.receipt().add_done_callback(self._clear)
        else:
            self._release(CONGESTED)

    def pause_writing(self) -> None:
        self._paused = True
        if self._delivery is not None:
            self._delivery.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._delivery is not None:
            self._delivery.resume()
        if self._held & UNREAD:
            self._release(UNREAD)

    # --- the end

    def _leave(self) -> None:
        self._transport.close()  # once it has read what is on its way, if it ever does
        if self.busy:
            self._door.loop.call_later(NOTICE, self._transport.abort)

    @property
    def busy(self) -> bool:
        """True while something is on its way."""
        return self._transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        self._transport.abort()

    def eof_received(self) -> None:
        if self._commands.unfinished:
            log.debug("the connection has ended within a frame", extra=fields(peer=self._peer))

    def connection_lost(self, error: Exception | None) -> None:
        del self._door.connections[self]
        if self._delivery is not None:
            self._delivery.close()
            self._door.broker.receipt()


def _filter(topic: str) -> str:
    """A topic and everything below it."""
    if topic.endswith(("#", "*")):
        return topic
    below = topic.rstrip("/") + "/#"
    try:
        check_filter(below)
    except InvalidName:
        return topic  # there is no room for anything below it, or it is wrong by itself
    return below
