"""Clients of the devices door, blocking and on plain sockets: one that subscribes (TCP), one that publishes (UDP).

with Subscriber("C1", "127.0.0.1", 12345) as subscriber:
    subscriber.subscribe("hall/+", sf=True)
    for message in subscriber:
        print(message.topic, message.value)
"""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stafeta.addresses import Address, without_brackets
from stafeta.clients.closing import Closing
from stafeta.doors.devices.codec import Deliveries, ReceivedMessage, identify, subscribe, unsubscribe
from stafeta.doors.devices.readings import READERS, write
from stafeta.doors.devices.signing import sign
from stafeta.errors import InvalidMessage, NoReply
from stafeta.message import Kind

if TYPE_CHECKING:
    from stafeta.clients.tls import Tls

KINDS: Final = tuple(Kind(type_) for type_ in range(len(READERS)))  # those that a device can publish

_BLOCK: Final = 256 * 1024
_BY_WORD: Final = {kind.word: kind for kind in KINDS}
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_SCIENTIFIC = re.compile(r"-?\d+(\.\d+)?[eE][+-]?\d{1,3}", re.ASCII)


class Subscriber(Closing):
    """One connection in the text dialect.

    The broker keeps a client's subscriptions when it is away; with `sf` it keeps what is published meanwhile, too.
    """

    def __init__(
        self,
        client: str,
        host: str,
        port: int = 12345,
        *,
        timeout: float = 5.0,
        tls: "Tls | None" = None,
    ) -> None:
        """Raises `InvalidClient`, `NoReply` where no broker is reached within `timeout` seconds, or `Untrusted` where
        there is to be TLS, and it is not the broker's."""
        greeting = identify(client)
        self._deliveries = Deliveries()
        self._nothing_yet: tuple[type[OSError], ...] = (TimeoutError, BlockingIOError)
        try:
            self._socket = socket.create_connection((without_brackets(host), port), timeout)
            if tls is not None:
                from ssl import SSLWantReadError

                self._nothing_yet += (SSLWantReadError,)
                self._socket = tls.secured(self._socket, without_brackets(host))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(greeting)
        except (OSError, UnicodeError, OverflowError) as error:
            raise _unreachable(host, port, error) from None

    def subscribe(self, topic: str, sf: bool = False) -> None:
        """Subscribes to a topic or filter, or changes the SF of that subscription. Raises `InvalidName`."""
        self._send(subscribe(topic, sf))

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription. Raises `InvalidName`."""
        self._send(unsubscribe(topic))

    def receive(self, timeout: float | None = None) -> list[ReceivedMessage] | None:
        """What has come from the broker: waits for it, for `timeout` seconds at most, and then returns an empty list.
        None says that the broker has closed the connection, as it does at once where the id is in use.
        Raises `InvalidDelivery`."""
        self._socket.settimeout(timeout)
        while True:
            try:
                data = self._socket.recv(_BLOCK)
            except self._nothing_yet:
                return []
            except OSError:
                data = b""
            if not data:
                return None
            deliveries = self._deliveries.take(data)
            if deliveries or timeout is not None:
                return deliveries

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages as they come, until the broker closes the connection."""
        while (deliveries := self.receive()) is not None:
            yield from deliveries

    def fileno(self) -> int:
        """For `select`: readable when something has come."""
        return self._socket.fileno()

    def finish(self) -> None:
        """Says that nothing more will be said: the broker carries out what it was told, and closes."""
        with suppress(OSError):  # the broker may have been faster
            socket.socket.shutdown(self._socket, socket.SHUT_WR)  # TLS, too, goes on reading then

    def close(self) -> None:
        self._socket.close()

    def _send(self, command: bytes) -> None:
        self._socket.settimeout(None)
        try:
            self._socket.sendall(command)
        except OSError as error:
            raise NoReply(f"The broker has closed the connection: {error.strerror}.") from None


class Publisher(Closing):
    """Sends readings. UDP has no acknowledgement: nobody says whether one has arrived."""

    def __init__(self, host: str, port: int = 12345, *, key: bytes | None = None, sender: int = 0) -> None:
        """With a key datagrams are signed, as those of this sender: each has a number of its own. Raises `NoReply`
        where the host is not known."""
        self._key = key
        self._sender = sender
        self._last = 0
        try:
            found = socket.getaddrinfo(without_brackets(host), port, type=socket.SOCK_DGRAM)
            # IPv4 first: subscribers are told the address of the publisher, and have room for no other.
            family, type_, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
            self._address: tuple[Any, ...] = address
            self._socket = socket.socket(family, type_, protocol)
        except (OSError, UnicodeError, OverflowError) as error:
            raise _unreachable(host, port, error) from None

    def publish(self, topic: str, kind: Kind, payload: bytes) -> None:
        """Sends one reading. Raises `InvalidMessage`, or `NoReply` where the system cannot send it."""
        self.send(write(topic, kind, payload))

    def send(self, datagram: bytes) -> None:
        """Sends what `readings.write` made."""
        if self._key is not None:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            datagram = sign(datagram, self._key, self._sender, self._last)
        try:
            self._socket.sendto(datagram, self._address)
        except OSError as error:
            host, port = self._address[:2]
            raise _unreachable(str(host), int(port), error) from None

    def close(self) -> None:
        self._socket.close()


def kind_of(word: str) -> Kind:
    """The kind that a word names, in capitals or not. Raises `InvalidMessage`."""
    kind = _BY_WORD.get(word.lower())
    if kind is None:
        raise InvalidMessage(f"{word[:40]!r} is not a kind; devices publish {', '.join(_BY_WORD)}.")
    return kind


def payload_of(kind: Kind, text: str) -> bytes:
    """What a person wrote as a payload of a kind, exactly: 5 is 5.00 as SHORT_REAL, 1e-7 is 0.0000001 as FLOAT."""
    if kind is Kind.STRING:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidMessage(f"{text[:40]!r} is not UTF-8.") from None
    if _SCIENTIFIC.fullmatch(text):
        from decimal import Decimal  # slow to import, and seldom needed

        text = format(Decimal(text), "f")
    elif not _NUMBER.fullmatch(text):
        raise InvalidMessage(f"{text[:40]!r} is not a number.")
    if kind is Kind.SHORT_REAL:
        whole, _, decimals = text.partition(".")
        text = f"{whole}.{decimals:0<2}"
    return text.encode()


def _unreachable(host: str, port: int, error: Exception) -> NoReply:
    why = getattr(error, "strerror", None) or str(error)
    return NoReply(f"{Address(without_brackets(host), port)} cannot be reached: {why}.")
