"""What moves through Stafeta: messages, in batches.

A batch is a run of consecutive messages of one topic. Inside the broker nothing smaller is handed on: the doors turn
a batch into their bytes, the store keeps it. Its messages came either one by one, as rows (`RowBatch`), or out of the
store or an Arrow client, as columns (`stafeta.columns.ColumnBatch`); both answer the same questions.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from reprlib import repr as shown
from typing import Final, NoReturn, TypeAlias

from stafeta.errors import InvalidMessage


class Kind(IntEnum):
    """What a payload is. Numbers are kept as their exact decimal text, so every door reads the same value."""

    INT = 0
    SHORT_REAL = 1
    FLOAT = 2
    STRING = 3
    JSON = 4
    BYTES = 5

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: object) -> "Kind":
        """The kind that a word of a client's names."""
        kind = _BY_WORD.get(word) if isinstance(word, str) else None
        if kind is None:
            raise InvalidMessage(
                f"{shown(word)} is not a kind of message; the kinds are {', '.join(_BY_WORD)}."
            )
        return kind


_BY_WORD = {kind.word: kind for kind in Kind}
_FORMS = {
    Kind.INT: re.compile(rb"-?\d{1,1000}"),
    Kind.SHORT_REAL: re.compile(rb"-?\d{1,1000}\.\d\d"),
    Kind.FLOAT: re.compile(rb"-?\d{1,1000}(\.\d{1,1000})?"),
}


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON, although Python writes and reads it")


def check_payload(kind: Kind, payload: bytes) -> None:
    """Raise `InvalidMessage` where a payload is not what its kind says."""
    form = _FORMS.get(kind)
    try:
        if form is not None and not form.fullmatch(payload):
            raise ValueError(kind)
        if kind is Kind.STRING:
            payload.decode()
        elif kind is Kind.JSON:
            json.loads(payload.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        shown = payload[:40].decode(errors="backslashreplace")
        raise InvalidMessage(f"{shown!r} is not of the kind {kind.word}.") from None


COLUMNS: Final = ("topic", "offset", "timestamp", "producer", "source", "kind", "payload")
"""What a message has, in the order in which tables of messages show it."""

ROW: Final = 32  # bytes that a message takes about, beside its payload, while it is moved in columns
HELD_ROW: Final = 200  # what it takes in memory beside its payload, roughly
HELD_BATCH: Final = 350  # and a batch, however small
LAGGING: Final = "$sys/lagging"  # the topic of the last message to a connection that is too far behind
DAMAGED: Final = "$sys/damaged"  # the topic of the message to a connection that cannot be sent everything

# position in the whole log, time (UTC, microseconds), producer, source address, kind, the producer's counter, payload.
# A plain tuple: one is made for every message that comes alone.
Row: TypeAlias = tuple[int, int, str, str, int, int | None, bytes]
POSITION: Final = 0
TIME: Final = 1
PRODUCER: Final = 2
SOURCE: Final = 3
KIND: Final = 4
COUNTER: Final = 5
PAYLOAD: Final = 6


class Batch(ABC):
    """Consecutive messages of one topic: offsets `base` to `base + count - 1`."""

    __slots__ = ("base", "count", "shared", "topic")

    def __init__(self, topic: str, base: int, count: int) -> None:
        self.topic = topic
        self.base = base
        self.count = count
        self.shared = (
            False  # true: many readers have this very object, so what is made of it is worth keeping
        )

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.base + self.count

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of payload, or close to it."""

    @property
    def held(self) -> int:
        """Bytes of memory that it takes, roughly."""
        return self.size + HELD_ROW * self.count + HELD_BATCH

    @abstractmethod
    def column(self, index: int) -> Sequence[object]:
        """One field of every message, by its index in a row (`TIME`, `PAYLOAD`, …)."""

    @abstractmethod
    def cut(self, start: int, stop: int) -> "Batch":
        """The messages with offsets from `start` up to, not including, `stop`."""

    @property
    @abstractmethod
    def payloads(self) -> Sequence[bytes]: ...

    @property
    @abstractmethod
    def positions(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def last_position(self) -> int: ...

    @abstractmethod
    def constant(self, index: int) -> object:
        """The value that a field has in every message; None where they differ."""

    @property
    @abstractmethod
    def lengths(self) -> set[int]:
        """All lengths that a payload has."""

    @property
    def longest(self) -> int:
        """The length of the longest payload."""
        return max(self.lengths, default=0)

    def parts(self, size: int) -> "list[Batch]":
        """Cut into equally many messages, so that each part has about `size` bytes at most."""
        whole = self.size + ROW * self.count
        step = -(-self.count // max(-(-whole // size), 1)) or 1
        return [self.cut(start, start + step) for start in range(self.base, self.end, step)]

    @property
    def counted(self) -> range | None:
        """Their producer's counters, where there is one producer and it counts without gaps."""
        return None

    @abstractmethod
    def framed(self, heads: Mapping[int, bytes]) -> bytes:
        """All payloads, one after the other, each behind the head for its length."""


class RowBatch(Batch):
    """A batch of messages that came one by one."""

    __slots__ = ("_size", "rows")

    def __init__(self, topic: str, base: int, rows: list[Row]) -> None:
        self.topic = topic
        self.base = base
        self.count = len(rows)
        self.rows = rows
        self.shared = True
        self._size = -1

    @property
    def size(self) -> int:
        if self._size < 0:
            rows = self.rows
            self._size = len(rows[0][PAYLOAD]) if len(rows) == 1 else sum([len(row[PAYLOAD]) for row in rows])
        return self._size

    def column(self, index: int) -> Sequence[object]:
        return [row[index] for row in self.rows]

    def cut(self, start: int, stop: int) -> "RowBatch":
        start = max(start, self.base)
        stop = min(stop, self.end)
        if start == self.base and stop == self.end:
            return self
        return RowBatch(self.topic, start, self.rows[start - self.base : stop - self.base])

    @property
    def payloads(self) -> Sequence[bytes]:
        return [row[PAYLOAD] for row in self.rows]

    @property
    def positions(self) -> Sequence[int]:
        return [row[POSITION] for row in self.rows]

    @property
    def last_position(self) -> int:
        return self.rows[-1][POSITION]

    def constant(self, index: int) -> object:
        values = self.column(index)
        return values[0] if values.count(values[0]) == self.count else None

    @property
    def lengths(self) -> set[int]:
        return set(map(len, self.payloads))

    def framed(self, heads: Mapping[int, bytes]) -> bytes:
        return b"".join([heads[len(payload)] + payload for payload in self.payloads])
