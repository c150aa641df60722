"""Queues: the frames door for programs that push values, or pull them, one after the other.

with JSONQueue("/weather", "producer") as queue:
    queue.push({"temperature": 21.5})
"""

import json
import re
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stafeta.addresses import Address, without_brackets
from stafeta.clients.closing import Closing
from stafeta.doors.frames.codec import KEYS, Frames, frame
from stafeta.doors.frames.serializers import JSON, PICKLE, XML, Serializer
from stafeta.errors import Cancelled, Disconnected, InvalidFrame, InvalidName, Lagging, NoReply, WrongRole
from stafeta.message import LAGGING

if TYPE_CHECKING:
    from stafeta.clients.tls import Tls

_KEY: Final = KEYS[0]
_RECEIVED: Final = 64 << 10  # bytes taken from the socket at a time
_LONGEST_NAME: Final = 255  # bytes
_NO_NAME: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WILDCARD: Final = re.compile(r"[+#*]")


class Role(StrEnum):
    CONSUMER = "consumer"
    PRODUCER = "producer"


class Queue(Closing):
    """One topic at a broker. A consumer pulls what is published on it and below it, a producer pushes.

    A consumer subscribes when it is made, and is sent the topic's last value first, if there is one. What is published
    while nobody consumes is not kept for anyone, but for that last value.

    Raises `NoReply` where no broker answers within `timeout` seconds, and `Disconnected` when the connection is gone:
    make a new queue then. One thread at a time uses a queue; only `cancel` may come from another. With `tls` the
    connection is TLS, as the broker's door must be then; `Untrusted` is raised where it is not the broker's.
    """

    _serializer: ClassVar[Serializer]

    def __init__(
        self,
        topic: str,
        role: Role | str = Role.CONSUMER,
        host: str = "127.0.0.1",
        port: int = 5000,
        *,
        timeout: float = 5.0,
        tls: "Tls | None" = None,
    ) -> None:
        if role not in list(Role):
            raise WrongRole(f"A queue's role is 'consumer' or 'producer', not {role!r}.")
        self.topic = topic
        self.role = Role(role)
        self._check_topic()
        self._cancelled = False
        self._frames = Frames()
        self._callbacks: deque[Callable[[list[str]], object]] = deque()
        self._broker = Address(without_brackets(host), port)
        self._secure = tls is not None
        try:
            self._socket = socket.create_connection(self._broker, timeout)
            if tls is not None:
                self._socket = tls.secured(self._socket, self._broker.host)
        except OSError as error:
            raise NoReply(
                f"No broker answers at {self._broker}: {error.strerror or error}. Does it run, with its frames door "
                "open there?"
            ) from error
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.role is Role.CONSUMER:
            try:
                self._say("subscribe", topic=topic)
            except Disconnected:
                self._socket.close()
                raise

    def push(self, value: Any) -> None:
        """Publish a value on the topic. Raises `InvalidMessage` where it cannot be carried, or is too large.

        The protocol has no receipt: what was pushed just before the broker or the connection broke may be lost.
        `list_topics` tells when all that was pushed before it is on the broker's disk.
        """
        if self.role is not Role.PRODUCER:
            raise WrongRole(
                f"A consumer of {self.topic!r} cannot push; make a queue with the role 'producer'."
            )
        self._serializer.check(value)
        self._notice_the_end()
        self._say("publish", topic=self.topic, message=value)

    def pull(self) -> tuple[str, Any]:
        """The next message: its topic, which is the queue's or one below it, and its value. Waits for one.

        Raises `Cancelled` once the queue is, and `Lagging` where the broker has ended a queue that was too slow.
        """
        if self.role is not Role.CONSUMER:
            raise WrongRole(
                f"A producer on {self.topic!r} cannot pull; make a queue with the role 'consumer'."
            )
        while True:
            fields = self._next()
            match fields.get(_KEY):
                case "publish":
                    return self._delivered(fields)
                case "listTopics":
                    self._listed(fields)

    def list_topics(self, callback: Callable[[list[str]], object]) -> None:
        """Ask for the topics that hold a value, by name.

        A consumer goes on pulling: `pull` calls the callback when the answer comes, between two messages. For a
        producer it has been called when this returns.
        """
        self._say("listTopics")
        self._callbacks.append(callback)
        while self.role is Role.PRODUCER and self._callbacks:
            self._listed(self._next())

    def cancel(self) -> None:
        """End the subscription and the connection. A `pull` that waits, in another thread, raises `Cancelled`. May be
        repeated; `with` does it too."""
        if self._cancelled:
            return
        if self.role is Role.CONSUMER:
            with suppress(Disconnected):
                self._say("unsubscribe", topic=self.topic)
        self._cancelled = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits
        self._socket.close()

    def close(self) -> None:
        """The same as `cancel`."""
        self.cancel()

    # --- frames

    def _check_topic(self) -> None:
        """What the broker would skip, and could not say so."""
        found = _NO_NAME.search(self.topic)
        if not self.topic or len(self.topic.encode(errors="replace")) > _LONGEST_NAME:
            raise InvalidName(
                f"A topic has 1 to {_LONGEST_NAME} bytes; {self.topic[:20]!r} is too short or too long."
            )
        if found is not None:
            raise InvalidName(f"The topic {self.topic!r} has {found[0]!r} in it; no white space is allowed.")
        if self.role is Role.PRODUCER and _WILDCARD.search(self.topic):
            raise InvalidName(f"The topic {self.topic!r} has a wildcard in it; only consumers may have one.")

    def _say(self, verb: str, **more: object) -> None:
        if self._cancelled:
            raise Cancelled(f"The queue on {self.topic!r} was cancelled; make a new one.")
        data = frame(self._serializer, {_KEY: verb, **more})
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._ended(error) from None

    def _notice_the_end(self) -> None:
        """Sending to a broker that has gone away works once: look before."""
        try:
            if (self._take_now() if self._secure else self._peek()) == b"":
                raise self._ended(None)
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._ended(error) from None

    def _peek(self) -> bytes:
        return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)

    def _take_now(self) -> bytes | None:
        """What has come, if anything: TLS has no other way to look."""
        from ssl import SSLWantReadError

        self._socket.settimeout(0.0)
        try:
            data = self._socket.recv(_RECEIVED)
        except SSLWantReadError:
            return None
        finally:
            self._socket.settimeout(None)
        self._frames.add(data)
        return data

    def _next(self) -> dict[str, Any]:
        while (body := self._frames.body()) is None:
            try:
                data = self._socket.recv(_RECEIVED)
            except OSError as error:
                raise self._ended(error) from None
            if not data:
                raise self._ended(None)
            self._frames.add(data)
        return self._serializer.load(body)

    def _ended(self, error: OSError | None) -> Cancelled | Disconnected:
        if self._cancelled:
            return Cancelled(f"The queue on {self.topic!r} was cancelled; make a new one.")
        if error is None:
            return Disconnected(
                f"The broker at {self._broker} has closed the connection; its log may say why."
            )
        return Disconnected(
            f"The connection to the broker at {self._broker} is gone: {error.strerror or error}."
        )

    def _delivered(self, fields: dict[str, Any]) -> tuple[str, Any]:
        try:
            topic, value = fields["topic"], fields["message"]
        except KeyError as missing:
            raise InvalidFrame(f"The broker sends a message without {missing}.") from None
        if topic == LAGGING:
            raise Lagging(str(value))
        return topic, value

    def _listed(self, fields: dict[str, Any]) -> None:
        topics = fields.get("topics")
        if isinstance(topics, str):  # in XML
            with suppress(ValueError):
                topics = json.loads(topics)
        if not isinstance(topics, list) or not self._callbacks:
            raise InvalidFrame("The broker sends topics that are no list, or that nobody asked for.")
        self._callbacks.popleft()(topics)


class JSONQueue(Queue):
    """Values are what JSON can carry: a tuple arrives as a list, and a dictionary's keys as text."""

    _serializer = JSON


class XMLQueue(Queue):
    """Values are text: any other arrives as its text in JSON."""

    _serializer = XML


class PickleQueue(Queue):
    """Values are plain data: None, bool, int, float, str, bytes, and lists, tuples, dictionaries and sets of them.
    What another pickle queue has pushed arrives exactly as it was."""

    _serializer = PICKLE
