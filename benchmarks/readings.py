"""What publishers send in the benchmarks of the devices door: readings, over and over, some with their number."""

from itertools import count
from operator import eq
from typing import NamedTuple

from benchmarks.setting import PAYLOAD

TOPIC = "bench/0"
DIGITS = 10  # of the number that a reading begins with, where it is numbered
INT, SHORT_REAL, FLOAT, STRING = range(4)


class Reading(NamedTuple):
    topic: str
    kind: int
    content: bytes
    numbered: bool = False  # whether its first digits are replaced by its place in the stream


def text(size: int, topic: str = TOPIC) -> Reading:
    """A text of so many bytes that begins with its number."""
    return Reading(topic, STRING, b"0" * DIGITS + b"x" * (size - DIGITS), numbered=True)


def number(place: int) -> bytes:
    """How a numbered reading at this place of the stream begins."""
    return b"%0*d" % (DIGITS, place)


def in_order(stream: bytearray | memoryview, size: int, first: int) -> bool:
    """Whether a stream of readings, `size` bytes for each, has them one after the other, beginning with that number.

    Each ends with the content of `ONE`.
    """
    rest = ONE[0].content[DIGITS:]
    found = (stream[place : place + PAYLOAD] for place in range(size - PAYLOAD, len(stream), size))
    sent = (number(place) + rest for place in count(first))
    return len(stream) % size == 0 and all(map(eq, found, sent))


ONE = (text(PAYLOAD),)


def _int(value: int) -> bytes:
    return bytes([value < 0]) + abs(value).to_bytes(4, "big")


def _float(value: int, decimals: int) -> bytes:
    return _int(value) + bytes([decimals])


SIXTEEN = (
    Reading("home/kitchen/people", INT, _int(4)),
    Reading("home/cellar/temperature", INT, _int(-7)),
    Reading("counter/largest", INT, _int(2**32 - 1)),
    Reading("counter/smallest", INT, _int(-(2**32) + 1)),
    Reading("shop/price", SHORT_REAL, (1999).to_bytes(2, "big")),
    Reading("shop/discount", SHORT_REAL, (5).to_bytes(2, "big")),
    Reading("lab/scale/0", FLOAT, _float(-17, 0)),
    Reading("lab/scale/1", FLOAT, _float(215, 1)),
    Reading("lab/scale/2", FLOAT, _float(-314, 2)),
    Reading("lab/scale/4", FLOAT, _float(12344321, 4)),
    Reading("lab/scale/6", FLOAT, _float(-2718281, 6)),
    Reading("lab/scale/9", FLOAT, _float(1, 9)),
    Reading("a/topic/of/fifty/characters/".ljust(50, "x"), INT, _int(50)),
    text(20, "door/bell"),
    text(100, "station/log"),
    text(1500, "station/report"),
)
