"""The head of every message that is measured: when it was to be sent, and its number.

1. The time is that of `time.monotonic_ns`, which all processes of a machine share.
2. The number has the publisher in its upper bits, and below them counts that publisher's messages from 0.
3. Text doors have both as 16 hexadecimal digits each, the Flight door as 8 bytes each, little-endian.
4. A message from before a subscriber was ready is not counted: a probe, or what an earlier run has left.
"""

from collections.abc import Iterator
from typing import Final

from stafeta.bench.schedule import Burst
from stafeta.errors import InvalidMessage

PUBLISHER_SHIFT: Final = 48
_TIME: Final = 16
_HEAD: Final = 32


def number_of(publisher: int, count: int) -> int:
    return publisher << PUBLISHER_SHIFT | count


def texts(burst: Burst, publisher: int, size: int) -> Iterator[str]:
    """The messages of a burst."""
    filler = "x" * (size - _HEAD)
    number = number_of(publisher, burst.first)
    for time, count in burst.groups:
        begin = f"{time:016x}"
        for one in range(number, number + count):
            yield f"{begin}{one:016x}{filler}"
        number += count


def probe(size: int) -> str:
    """A message that is not counted: it shows that a subscription is there."""
    return "0" * size


def read(text: str | bytes, size: int) -> tuple[int, int]:
    """Time and number of a message. Raises `InvalidMessage` where it is not one of ours."""
    try:
        if len(text) == size:
            return int(text[:_TIME], 16), int(text[_TIME:_HEAD], 16)
    except ValueError:
        pass
    raise stranger()


def stranger() -> InvalidMessage:
    return InvalidMessage("Somebody else publishes on the topic, too; choose another one with --topic.")
