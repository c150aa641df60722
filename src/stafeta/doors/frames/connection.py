"""One connection of the frames door. (docs/protocols/frames.md)

1. What comes together is published together, with one commit. Who says little is heard at once; who says much takes
   turns with the others, so many bytes each.
2. There is nothing in the protocol to say no with. Bytes that cannot be read, or messages that cannot be stored, end
   the connection; a command that is readable but cannot be carried out is logged and skipped.
3. What comes behind a listTopics waits until that is answered, and the answer has been read. So a topic that was
   published to before is in it, and a peer that only asks costs no memory.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from stafeta.doors.connection import PushedConnection
from stafeta.doors.frames.codec import (
    Command,
    Commands,
    ListTopics,
    Publish,
    Subscribe,
    Unsubscribe,
    topics_frame,
)
from stafeta.errors import (
    InvalidFrame,
    InvalidName,
    NotAuthenticated,
    NotPermitted,
    NotSubscribed,
    StafetaError,
)
from stafeta.logs import fields
from stafeta.names import FRAMES_PREFIX, check_filter, is_filter

if TYPE_CHECKING:
    from stafeta.doors.frames.server import FramesDoor

log = logging.getLogger("stafeta.frames")

PORTION: Final = 256  # commands before other connections get their turn
PORTION_SIZE: Final = 64 << 10  # and bytes of messages
LARGE_INPUT: Final = 16 << 10  # bytes that come together, and are heard in turn
NOTICE: Final = 5.0  # seconds for a connection that is closed to read what is on its way

# Why nothing is read from a connection for now.
TURN: Final = 1  # it has said much, and others come first
ASKED: Final = 2  # it has asked for the topics
UNREAD: Final = 4  # it has not read the answer


class Connection(PushedConnection):
    __slots__ = ("_commands", "_door", "_held", "_number", "_skipped")

    def __init__(self, door: "FramesDoor") -> None:
        super().__init__(door.connections)
        self._door = door
        self._number = next(door.numbers)
        self._commands = Commands()
        self._held = 0
        self._skipped = 0

    # --- commands

    def data_received(self, data: bytes) -> None:
        if self._verbs is None:
            try:
                _ = self.verbs
            except NotAuthenticated as error:
                self._end("the connection is closed: %s", error, "authentication")
                return
        self._commands.add(data)
        if self._held or self.transport.is_closing():
            return
        if len(data) > LARGE_INPUT or self._door.crowded:
            self._wait_for_turn()
        else:
            self._door.share.count(self._work)

    def _wait_for_turn(self) -> None:
        self._hold(TURN)
        self._door.take_turns(self)

    def turn(self) -> None:
        """It is this connection's turn."""
        self._release(TURN)

    def _work(self) -> None:
        """Carry out what has come, for one turn."""
        changed = asked = False
        group = self._door.broker.group
        most = group.size + PORTION_SIZE
        for _ in range(PORTION):
            if group.size > most:
                self._wait_for_turn()
                break
            try:
                command = self._commands.next()
            except InvalidFrame as error:
                self._end("the connection is closed: %s", error, "invalid")
                break
            if command is None:
                break
            if isinstance(command, ListTopics):
                self.has_spoken()
                asked = True
                break
            self.has_spoken()
            changed = self._do(command) or changed
        else:
            self._wait_for_turn()
        self._settle(changed=changed, asked=asked)

    def _do(self, command: Command) -> bool:
        """Returns whether there is something to be made durable."""
        verbs = self.verbs
        try:
            match command:
                case Publish(topic, kind, payload):
                    verbs.publish(topic, payload, kind, self.peer, create=True, keep_last=True)
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
        if self.session is not None and self._commands.serializer is not None:
            self.session.encoder = self._door.encoder(self._commands.serializer, self._commands.key)
        if changed:
            broker.commit().add_done_callback(self._stored)
        if self.transport.is_closing():
            return
        if asked:
            self._hold(ASKED)
            broker.commit().add_done_callback(self._answer)

    def _stored(self, commit: "asyncio.Future[None]") -> None:
        if commit.exception() is not None:
            self._end(
                "the connection is closed, what it said could not be stored: %s",
                commit.exception(),
                "not_stored",
            )

    def _skip(self, why: object) -> None:
        self._skipped += 1
        self._door.skipped += 1
        level = logging.WARNING if self._skipped == 1 else logging.DEBUG
        log.log(level, "a command is skipped: %s", why, extra=fields(peer=self.peer))

    def _end(self, sentence: str, why: object, reason: str) -> None:
        if not self.transport.is_closing():
            self._connections.rejected[reason] += 1
            log.warning(sentence, why, extra=fields(peer=self.peer))
            self._leave()

    # --- subscriptions

    def _subscribe(self, topic: str) -> None:
        if self.session is None:
            assert self._commands.serializer is not None
            encoder = self._door.encoder(self._commands.serializer, self._commands.key)
            self.deliver(f"{FRAMES_PREFIX}{self._number}", encoder)
        assert self.session is not None
        last_of = None if is_filter(topic) else topic.rstrip("/") or topic
        self.session.consumer.subscribe(_filter(topic), durable=False, last_of=last_of)

    def _unsubscribe(self, topic: str) -> None:
        try:
            if self.session is not None:
                self.session.consumer.unsubscribe(_filter(topic))
        except NotSubscribed as error:
            log.debug("%s", error, extra=fields(peer=self.peer))

    # --- listTopics

    def _answer(self, _: "asyncio.Future[None]") -> None:
        self._door.keep(self._door.loop.create_task(self._send_topics()))

    async def _send_topics(self) -> None:
        try:
            names = await self._door.topics(self.verbs)
        except NotPermitted as error:
            self._skip(error)
            names = []
        except NotAuthenticated as error:
            self._end("the connection is closed: %s", error, "authentication")
            return
        if self.transport.is_closing():
            return
        assert self._commands.serializer is not None
        answer, listed = topics_frame(self._commands.serializer, self._commands.key, names)
        if listed < len(names):
            self._door.warn(
                "an answer to listTopics has only the topics that fit", listed=listed, topics=len(names)
            )
        self.transport.write(answer)
        if self._paused:
            self._hold(UNREAD)
        self._release(ASKED)

    # --- pace

    def _hold(self, reason: int) -> None:
        if not self._held:
            self.transport.pause_reading()
        self._held |= reason

    def _release(self, reason: int) -> None:
        self._held &= ~reason
        if not self._held and not self.transport.is_closing():
            self._door.share.count(self._work)
            self._resume()

    def _resume(self) -> None:
        if not self._held and not self.transport.is_closing():
            self.transport.resume_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held & UNREAD:
            self._release(UNREAD)

    # --- the end

    def _leave(self) -> None:
        self.transport.close()  # once it has read what is on its way, if it ever does
        if self.busy:
            self._door.loop.call_later(NOTICE, self.transport.abort)

    def eof_received(self) -> None:
        if self._commands.unfinished:
            log.debug("the connection has ended within a frame", extra=fields(peer=self.peer))


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
