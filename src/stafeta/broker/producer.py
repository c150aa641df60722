"""What is remembered of a producer on one topic, so that a retry is recognised.

1. A producer that counts without gaps (`SequenceProducer`) is recognised for ever: what is not above its last number is
   a retry.
2. One that draws its counters at random (`CounterProducer`) has one request under way at a time; a retry is one of
   its last few counters with the same payload. The payload is compared because two random counters are
   equal now and then, and then the second message must not be lost.
3. A name stands for one of the two: those of rule 2 begin with `counter/`, at the broker and in what is stored. So a
   client may do both, and neither is taken for the other.
"""

import zlib
from collections.abc import Sequence
from typing import TypeAlias

import orjson

from stafeta.errors import OutOfSequence
from stafeta.names import COUNTER_PREFIX

REMEMBERED = 8  # counters, for rule 2
RANGES = 64  # runs of numbers whose offsets are known, for answering a retry as the first time


class SequenceProducer:
    __slots__ = ("last", "ranges", "unsure")

    def __init__(
        self, last: int = 0, ranges: Sequence[tuple[int, int, int]] = (), *, unsure: bool = False
    ) -> None:
        self.last = last
        self.unsure = unsure  # it may have come further, before a backup was restored
        self.ranges = tuple(ranges)  # first number, how many, first offset

    @property
    def reached(self) -> int:
        """The last offset recorded."""
        return self.ranges[-1][2] + self.ranges[-1][1] - 1 if self.ranges else 0

    def copy(self) -> "SequenceProducer":
        return SequenceProducer(self.last, self.ranges, unsure=self.unsure)

    def repeated(self, sequence: int, count: int) -> int:
        """How many of the messages numbered from `sequence` on were stored before."""
        return repeated_of(self.last, sequence, count)

    def offset_of(self, sequence: int) -> int | None:
        for first, count, offset in reversed(self.ranges):
            if first <= sequence < first + count:
                return offset + sequence - first
        return None

    def record(self, sequence: int, offset: int, count: int) -> None:
        """Messages with consecutive numbers were stored at consecutive offsets."""
        known = self.ranges[-1] if self.ranges else None
        if known and known[0] + known[1] == sequence and known[2] + known[1] == offset:
            self.ranges = (*self.ranges[:-1], (known[0], known[1] + count, known[2]))
        else:
            self.ranges = (*self.ranges[1 - RANGES :], (sequence, count, offset))
        self.last = sequence + count - 1

    def encode(self) -> bytes:
        return orjson.dumps((self.last, self.ranges, ()))


class CounterProducer:
    __slots__ = ("recent",)

    def __init__(self, recent: Sequence[tuple[int, int, int]] = ()) -> None:
        self.recent = tuple(recent)  # counter, checksum of the payload, offset

    @property
    def reached(self) -> int:
        """The last offset recorded."""
        return self.recent[-1][2] if self.recent else 0

    def copy(self) -> "CounterProducer":
        return CounterProducer(self.recent)

    def stored_at(self, counter: int, payload: bytes) -> int | None:
        """The offset under which this was stored before, or None if it is new."""
        for known, checksum, offset in self.recent:
            if known == counter and checksum == zlib.crc32(payload):
                return offset
        return None

    def record(self, counter: int, offset: int, payload: bytes) -> None:
        self.recent = (*self.recent[1 - REMEMBERED :], (counter, zlib.crc32(payload), offset))

    def encode(self) -> bytes:
        return orjson.dumps((0, (), self.recent))


Producer: TypeAlias = SequenceProducer | CounterProducer


def decode(name: str, state: bytes) -> Producer:
    last, ranges, recent = orjson.loads(state)
    if name.startswith(COUNTER_PREFIX):
        return CounterProducer([tuple(one) for one in recent])
    return SequenceProducer(last, [tuple(one) for one in ranges])


def repeated_of(last: int, sequence: int, count: int) -> int:
    """How many of `count` messages numbered from `sequence` on are known, where `last` is the last that is."""
    expected = last + 1
    if sequence > expected:
        raise OutOfSequence(
            f"Sequence {sequence} comes too early: this producer's next is {expected}. Send again from there.",
            expected,
        )
    return min(count, expected - sequence)
