"""What a subscriber gets in either dialect: who sent a message, and the message as a datagram.

1. A message that a datagram cannot carry is cut, or becomes a string of its text, and is counted.
2. A source that is no IPv4 address is 0.0.0.0, port 0, where there is room for nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from stafeta.doors.devices.readings import HEAD, READERS, TOPIC_BYTES, content, text_of
from stafeta.errors import InvalidDatagram, InvalidDelivery
from stafeta.message import KIND, SOURCE, Batch, Kind

STRING: Final = int(Kind.STRING)
_NAMES: Final = tuple(Kind(type_).name for type_ in range(len(READERS)))


class ReceivedMessage(NamedTuple):
    """One message, as people see it. Bytes that are not UTF-8 are in its texts as `surrogateescape` has them."""

    ip: str
    port: int
    topic: str
    kind: str
    value: str


class DeliveryReader(ABC):
    """Reads what a broker sends to one subscriber."""

    def __init__(self) -> None:
        self._unread = b""

    def take(self, data: bytes) -> list[ReceivedMessage]:
        """The messages that these bytes complete. Raises `InvalidDelivery` where the rest cannot be read;
        the messages that came before that in the same bytes are its `before`."""
        data = self._unread + data
        deliveries: list[ReceivedMessage] = []
        at = 0
        try:
            while (found := self._read(data, at)) is not None:
                delivery, at = found
                deliveries.append(delivery)
        except InvalidDatagram as error:
            raise InvalidDelivery(str(error), deliveries) from None
        finally:
            self._unread = data[at:]
        return deliveries

    @abstractmethod
    def _read(self, data: bytes, at: int) -> tuple[ReceivedMessage, int] | None:
        """The message at a place and where the next one begins; None where it is not complete."""


def delivery(ip: str, port: int, datagram: bytes) -> ReceivedMessage:
    """What a datagram of the broker's tells. Raises `InvalidDatagram`."""
    type_ = datagram[TOPIC_BYTES]
    if type_ >= len(READERS):
        raise InvalidDatagram(f"The broker sends the type {type_}; the types are 0 to {len(READERS) - 1}.")
    _, value = READERS[type_](datagram[HEAD:])
    topic = datagram[:TOPIC_BYTES].partition(b"\0")[0]
    return ReceivedMessage(
        ip,
        port,
        topic.decode(errors="surrogateescape"),
        _NAMES[type_],
        value.decode(errors="surrogateescape"),
    )


def contents(batch: Batch, cut: Callable[[], None]) -> tuple[Sequence[str], Sequence[int], Sequence[bytes]]:
    """Source, type byte and content of each message; `cut` is called for each that had to be changed."""
    sources = cast("Sequence[str]", batch.column(SOURCE))
    payloads = batch.payloads
    if not fits(batch.topic):
        made = [(STRING, text_of(payload), True) for payload in payloads]
    else:
        kinds = cast("Sequence[int]", batch.column(KIND))
        made = [content(kind, payload) for kind, payload in zip(kinds, payloads, strict=True)]
    types, bodies, changed = zip(*made, strict=True)
    for _ in filter(None, changed):
        cut()
    return sources, types, bodies


def fits(topic: str) -> bool:
    return len(topic.encode()) <= TOPIC_BYTES


def topic_field(topic: str) -> bytes:
    """As much of a topic as fits, padded."""
    return topic.encode()[:TOPIC_BYTES].decode(errors="ignore").encode().ljust(TOPIC_BYTES, b"\0")
