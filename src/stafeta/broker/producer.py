"""What is remembered of a producer on one topic, so that a retry is recognised.

1. A producer that counts without gaps (`sequence`) is recognised for ever: what is not above its last counter is a
   retry.
2. One that draws its counters as it likes (`once`) has one request under way at a time; a retry is one of its last few
   counters with the same payload. The payload is looked at because random draws meet now and then, and then the
   second message must not be lost.
"""

import zlib
from collections.abc import Sequence

import orjson

from stafeta.errors import OutOfSequence

REMEMBERED = 8  # counters, for rule 2
RANGES = 64  # runs of counters whose offsets are known, for answering a retry as the first time


class Producer:
    __slots__ = ("draws", "last", "ranges")

    def __init__(self) -> None:
        self.last = 0
        self.ranges: tuple[tuple[int, int, int], ...] = ()  # first counter, how many, first offset
        self.draws: tuple[tuple[int, int, int], ...] = ()  # counter, checksum of the payload, offset

    @property
    def reached(self) -> int:
        """The last offset recorded."""
        return self.ranges[-1][2] + self.ranges[-1][1] - 1 if self.ranges else 0

    def copy(self) -> "Producer":
        twin = Producer()
        twin.last, twin.ranges, twin.draws = self.last, self.ranges, self.draws
        return twin

    def stored_at(self, counter: int, payload: bytes) -> int | None:
        """Rule 2: the offset under which this was stored before, or None if it is new."""
        for known, checksum, offset in self.draws:
            if known == counter and checksum == zlib.crc32(payload):
                return offset
        return None

    def repeated(self, sequence: int, count: int) -> int:
        """Rule 1: how many of the messages numbered from `sequence` on were stored before."""
        return repeated_of(self.last, sequence, count)

    def offset_of(self, sequence: int) -> int | None:
        for first, count, offset in reversed(self.ranges):
            if first <= sequence < first + count:
                return offset + sequence - first
        return None

    def record(self, counter: int, offset: int, payloads: Sequence[bytes], count: int | None = None) -> None:
        """Messages with consecutive counters were stored at consecutive offsets. Where there are many, `count` says how
        many, and payloads need not be given: a producer that numbers many at once draws none."""
        count = len(payloads) if count is None else count
        known = self.ranges[-1] if self.ranges else None
        if known and known[0] + known[1] == counter and known[2] + known[1] == offset:
            self.ranges = (*self.ranges[:-1], (known[0], known[1] + count, known[2]))
        else:
            self.ranges = (*self.ranges[1 - RANGES :], (counter, count, offset))
        newest = payloads[-REMEMBERED:]
        fresh = [
            (counter + at, zlib.crc32(payload), offset + at)
            for at, payload in enumerate(newest, count - len(newest))
        ]
        self.draws = (*self.draws, *fresh)[-REMEMBERED:]
        self.last = counter + count - 1

    def encode(self) -> bytes:
        return orjson.dumps((self.last, self.ranges, self.draws))

    @classmethod
    def decode(cls, state: bytes) -> "Producer":
        producer = cls()
        last, ranges, draws = orjson.loads(state)
        producer.last = last
        producer.ranges = tuple(map(tuple, ranges))
        producer.draws = tuple(map(tuple, draws))
        return producer


def repeated_of(last: int, sequence: int, count: int) -> int:
    """How many of `count` messages numbered from `sequence` on are known, where `last` is the last that is."""
    expected = last + 1
    if sequence > expected:
        raise OutOfSequence(
            f"Sequence {sequence} comes too early: this producer's next is {expected}. Send again from there.",
            expected,
        )
    return min(count, expected - sequence)
