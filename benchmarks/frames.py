"""The requests that clients send in a benchmark: what they are, made where they are sent."""

from collections.abc import Iterator
from itertools import count, cycle, islice
from time import time_ns
from typing import NamedTuple, Protocol

TOPIC = "bench/0"


class Frames(Protocol):
    """Requests of one kind, for any number of connections."""

    @property
    def accepted(self) -> bytes:
        """How a reply to one begins, if all is well."""

    def of(self, connection: int) -> Iterator[bytes]: ...


class TextPuts(NamedTuple):
    """PUTs of the text dialect, one topic after the other: `bench/0`, `bench/1`, …."""

    size: int
    topics: int = 1
    total: int | None = None  # for each connection; None: without end

    @property
    def accepted(self) -> bytes:
        return b"ACK"

    def of(self, connection: int) -> Iterator[bytes]:
        payload = "x" * self.size
        return islice(
            cycle([f"PUT bench/{topic} {payload}".encode() for topic in range(self.topics)]), self.total
        )


class JsonPuts(NamedTuple):
    """PUTs of the JSON dialect, counted: each connection is a client of its own."""

    size: int

    @property
    def accepted(self) -> bytes:
        return b'{"type":"ACK"'

    def of(self, connection: int) -> Iterator[bytes]:
        head = f'{{"type":"PUT","topic":"{TOPIC}","client_id":"producer{connection}","body":{{"counter":'
        tail = f',"publication":"{"x" * self.size}"}}}}'
        template = f"{head}%d{tail}".encode()
        # From where no run before it has been, so that none of them is taken for a retry.
        return (template % number for number in count(time_ns()))


class Subs(NamedTuple):
    """SUBs of the text dialect; `{}` in either pattern is a number that counts up from 0."""

    total: int
    client: str
    filter: str

    @property
    def accepted(self) -> bytes:
        return b"ACK"

    def of(self, connection: int) -> Iterator[bytes]:
        return (
            f"SUB {self.client.format(number)} {self.filter.format(number)}".encode()
            for number in range(self.total)
        )
