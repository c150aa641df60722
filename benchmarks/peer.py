"""What is compared: one system, set up in one way. The same few methods do the same work on each.

1. `serve` runs where somebody measures. What takes an address runs in the process of a client.
2. A message counts as published once the system has acknowledged it; where a way asks for no acknowledgement, once the
   system has it.
3. A message counts as consumed once it is a Python object (an Arrow one where a way says so) and its acknowledgement
   is with the system.
"""

import base64
import importlib.util
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random
from time import monotonic_ns, sleep
from typing import ClassVar

from benchmarks.load import LoadFailed
from benchmarks.setting import PAYLOAD

TOPIC = "bench"
CLIENT = "reader"
PATIENCE = 60.0  # seconds for an answer
MISSING = "not installed"
FSYNCED = "on disk (fsync)"
MEMORY = "in memory, never on disk"
UNACKNOWLEDGED = "none: no acknowledgement"
_POOL = 100_000  # messages that differ
_STAMP = 20  # digits of a time


class System(ABC):
    """One system, set up in one way."""

    system: ClassVar[str]
    settings: str  # of the server
    durable: bool  # set up as its documentation recommends where nothing may be lost; else as fast as it goes

    @abstractmethod
    def version(self) -> str | None:
        """Of the server; None where that or its Python client is not installed."""

    @abstractmethod
    def serve(self, folder: Path) -> AbstractContextManager[str]:
        """A new server with all it writes in the folder; gives the address that its clients need."""

    @abstractmethod
    def prepare(self, address: str) -> None:
        """Makes what messages are published to, and has them kept for the one who consumes."""


class Publisher(System):
    """One that messages are published to."""

    publishing: str  # how
    promise: str  # where a message is once it is acknowledged

    @abstractmethod
    def publish(self, address: str, total: int) -> float:
        """Publishes so many messages; how many seconds that took, without connecting."""


class Peer(Publisher):
    """One that messages are consumed from, too."""

    consuming: str  # how
    remembers: str  # where an acknowledgement is once it was given

    @abstractmethod
    def consume(self, address: str, total: int) -> float:
        """Consumes so many messages; how many seconds that took, without connecting."""


class Timed(System):
    """One whose way from publisher to subscriber is timed."""

    timing: str  # how it publishes and consumes
    promise: str  # where a message is when it is delivered

    @abstractmethod
    def send(self, address: str, begin: int, rate: int, total: int) -> None:
        """Publishes so many messages a second, each with the time in it that it was due at."""

    @abstractmethod
    def receive(self, address: str, total: int) -> "array[int]":
        """Consumes so many; how many nanoseconds after it was due each one came."""


@cache
def pool() -> list[bytes]:
    """The messages that all publish, again and again: random and printable."""
    random = Random(1)
    return [base64.b64encode(random.randbytes(PAYLOAD * 3 // 4)) for _ in range(_POOL)]


def make_pool() -> None:
    """In a process of a client, before the clock runs."""
    pool()


def messages(total: int) -> Iterator[bytes]:
    """So many of them."""
    return islice(cycle(pool()), total)


def portions(total: int, rows: int) -> Iterator[list[bytes]]:
    """So many of them, in lists of so many."""
    assert _POOL % rows == 0
    kept = [pool()[begin : begin + rows] for begin in range(0, _POOL, rows)]
    full, rest = divmod(total, rows)
    yield from islice(cycle(kept), full)
    if rest:
        yield kept[full % len(kept)][:rest]


def paced(begin: int, rate: int, total: int) -> Iterator[bytes]:
    """Messages at an even pace from a time on (`monotonic_ns`), each with the time in it that it was due at.

    Who comes late for one gets it at once, so that the waiting of the next ones is measured as well.
    """
    rest = pool()[0][_STAMP:]
    for number in range(total):
        due = begin + number * 1_000_000_000 // rate
        early = due - monotonic_ns()
        if early > 0:
            sleep(early / 1e9)
        yield b"%020d" % due + rest


def age(payload: bytes | str) -> int:
    """How many nanoseconds ago a message was due."""
    return monotonic_ns() - int(payload[:_STAMP])


def has_module(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def expect(total: int, got: int, who: str) -> None:
    if got != total:
        raise LoadFailed(f"{who} delivered {got:,} messages instead of {total:,}.")
