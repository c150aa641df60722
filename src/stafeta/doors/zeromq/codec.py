"""Bytes to requests and answers to bytes, in the two dialects of docs/protocols/zeromq.md. No sockets."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from stafeta.errors import StafetaError
from stafeta.message import Batch, Kind

MAX_IDS = 100_000  # that one ACK may name


class BadRequest(StafetaError):
    """A frame that is no request."""


class Login(NamedTuple):
    pass


class Subscribe(NamedTuple):
    client: str
    filter: str
    mark: str | None = None  # of the log that the client has read; None: it wants none


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
    create: bool = False  # the topic, where it does not exist


class Get(NamedTuple):
    client: str
    filter: str
    after: int | None = None  # None: what is not acknowledged
    limit: int | None = None  # None: what one reply holds
    wait: float = 0.0
    mark: str | None = None  # None: it wants none
    single: bool = False  # it wants one message, and not as a list


class Ack(NamedTuple):
    client: str
    filter: str
    ids: Sequence[int] | None
    up_to: int | None = None
    mark: str | None = None


class Topics(NamedTuple):
    filter: str
    after: str
    limit: int


class Skip(NamedTuple):
    topic: str
    first: int
    last: int


class Wait(NamedTuple):
    """Until one of a client's subscriptions has something for it."""

    client: str
    filters: Sequence[str]
    wait: float


class Watch(NamedTuple):
    """Whatever is published from now on; no filters: an end to it."""

    client: str
    filters: Sequence[str]
    wait: float


class Read(NamedTuple):
    """What a topic holds, acknowledged or not: from an offset on, or the last few messages."""

    topic: str
    start: int | None
    last: int
    limit: int


class Stats(NamedTuple):
    pass


class Clients(NamedTuple):
    after: str
    limit: int


class Subscriptions(NamedTuple):
    after: tuple[str, str]
    limit: int
    filter: str


Request: TypeAlias = (
    Login
    | Subscribe
    | Unsubscribe
    | Put
    | PutSequence
    | Get
    | Ack
    | Topics
    | Skip
    | Wait
    | Watch
    | Read
    | Stats
    | Clients
    | Subscriptions
)
LongPoll: TypeAlias = Get | Wait | Watch  # what may wait for messages


class TopicLine(NamedTuple):
    name: str
    first: int
    next: int
    subscriptions: int


class FetchResult(NamedTuple):
    """Messages for a GET: batches in order, and whether their ids are positions in the whole log; and the log's mark,
    if it was asked for."""

    batches: Sequence[Batch]
    by_position: bool
    mark: str | None = None


class Dialect(Protocol):
    def read(self, body: bytes) -> Request:
        """The request, or `BadRequest`."""

    def logged_in(self, id_: int) -> bytes: ...

    def subscribed(self, last: int, mark: str | None) -> bytes: ...

    def done(self) -> bytes: ...

    def stored(self, offset: int) -> bytes: ...

    def messages(self, request: Get, fetched: FetchResult, size: int) -> bytes:
        """At most `size` bytes, but at least one message where there is any."""

    def error(self, request: Request | None, error: StafetaError) -> bytes: ...
