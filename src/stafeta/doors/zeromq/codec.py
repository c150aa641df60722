"""Bytes to requests and answers to bytes, in the two dialects of docs/protocols/zeromq.md. No sockets."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from stafeta.errors import StafetaError
from stafeta.message import Batch, Kind


class BadRequest(StafetaError):
    """A frame that is no request."""


class Login(NamedTuple):
    pass


class Subscribe(NamedTuple):
    client: str
    filter: str


class Unsubscribe(NamedTuple):
    client: str
    filter: str


class Put(NamedTuple):
    topic: str
    payload: bytes
    kind: int = Kind.STRING
    client: str = ""
    counter: int | None = None


class PutSequence(NamedTuple):
    topic: str
    payloads: Sequence[bytes]
    kind: int
    client: str
    sequence: int


class Get(NamedTuple):
    client: str
    filter: str
    after: int | None = None  # None: what is not acknowledged
    limit: int | None = None  # None: as the dialect has it
    wait: float = 0.0


class Ack(NamedTuple):
    client: str
    filter: str
    ids: Sequence[int] | None
    up_to: int | None = None


class Topics(NamedTuple):
    filter: str
    after: str
    limit: int


Request: TypeAlias = Login | Subscribe | Unsubscribe | Put | PutSequence | Get | Ack | Topics


class TopicLine(NamedTuple):
    name: str
    first: int
    next: int
    subscriptions: int


class Delivery(NamedTuple):
    """Messages for a GET: batches in order, and whether their ids are positions in the whole log."""

    batches: Sequence[Batch]
    by_position: bool


class Dialect(Protocol):
    def read(self, body: bytes) -> Request:
        """The request, or `BadRequest`."""

    def logged_in(self, id_: int) -> bytes: ...

    def subscribed(self, last: int) -> bytes: ...

    def done(self) -> bytes: ...

    def stored(self, offset: int) -> bytes: ...

    def messages(self, request: Get, delivery: Delivery, size: int) -> bytes:
        """At most `size` bytes, but at least one message where there is any."""

    def error(self, request: Request | None, error: StafetaError) -> bytes: ...
