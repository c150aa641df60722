"""The port between the broker and whatever keeps its log.

1. `commit` is all or nothing, and durable when it returns. If it raises, nothing has changed.
2. An append states the offset at which it expects its topic to end; if that is not so the commit raises
   `StoreConflict`. With it several brokers can share one store.
3. A topic's record with a higher `first` releases what lies below; the store frees the space in `sweep`, in its own
   time.
4. Producers' states may be written less often than their messages: only in groups marked `checkpoint`, which the
   broker sends when `checkpoint_due`. `open` returns the batches appended since, for the broker to replay.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from stafeta.histogram import Histogram
from stafeta.message import Batch

if TYPE_CHECKING:
    from stafeta.columns import ColumnBatch


class TopicRecord(NamedTuple):
    id: int
    name: str
    first: int  # the lowest offset still kept
    next: int  # the offset the next message gets
    exists: bool  # false: removed, remembered so that its offsets go on where they ended
    keeps_last: bool  # its last message stays when it is not held any more


class KeepRecord(NamedTuple):
    """How long a topic keeps what nobody waits for, where it is its own and not the configuration's."""

    age: int | None  # microseconds
    size: int | None  # bytes of payload
    messages: int | None


class SubscriptionRecord(NamedTuple):
    id: int
    client: str
    filter: str
    start: int  # the position of the last message before it
    durable: bool = True  # false: it is remembered, but holds nothing


class CursorRecord(NamedTuple):
    floor: int  # everything below is done
    above: Sequence[tuple[int, int]]  # ranges done above the floor, each from, up to but not including


class CursorChange(NamedTuple):
    floor: int
    ranges: Mapping[
        int, int | None
    ]  # by where they begin: where ranges above the floor end, None for those that went
    whole: bool  # nothing of what was stored of it before is left


class ProducerRecord(NamedTuple):
    topic: int
    producer: str
    state: bytes  # the broker's own encoding


class Append(NamedTuple):
    topic: int
    batch: Batch


class StagedRecord(NamedTuple):
    """A batch that waits, unseen, for its transaction."""

    id: int
    producer: str
    counter: int
    part: str
    topic: str  # or several, as `topics_of` writes them
    rows: int
    size: int
    time: int

    @property
    def runs(self) -> list[tuple[str, int]]:
        """The topics, each with the number of its rows, in the order of the rows."""
        if " " not in self.topic:  # which no name has
            return [(self.topic, self.rows)]
        return [(name, int(rows)) for name, rows in (line.split(" ") for line in self.topic.split("\n"))]


def topics_of(runs: Iterable[tuple[str, int]]) -> str:
    """Topics and numbers of rows as a `StagedRecord` has them."""
    return "\n".join(f"{name} {rows}" for name, rows in runs)


class CommitRecord(NamedTuple):
    """What is kept of a committed transaction beside its number."""

    label: str  # what the committer wrote on it
    expires: int  # when its producer is forgotten, if this is its last (microseconds); 0: never


class Promotion(NamedTuple):
    """A staged batch that takes its place in the log; of one with several topics, the rows of one of them. Such stand
    one after the other."""

    staged: int
    topic: int
    base: int
    rows: int
    position: int
    time: int
    row: int = 0
    """The first of these rows among those of the batch."""


@dataclass(slots=True)
class Group:
    """One transaction. Dictionaries hold the last word on each thing; None removes it."""

    appends: list[Append | Promotion] = field(default_factory=list)  # in the order of each topic's offsets
    topics: dict[int, TopicRecord] = field(default_factory=dict)
    kept: dict[int, KeepRecord | None] = field(default_factory=dict)  # by topic
    subscriptions: dict[int, SubscriptionRecord | None] = field(default_factory=dict)
    reset: set[int] = field(default_factory=set)  # subscriptions of whose cursors only those below stay
    cursors: dict[tuple[int, int], CursorChange] = field(default_factory=dict)  # by subscription and topic
    skipped: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # topic, from, up to: damaged, not read again
    transactions: dict[str, int | None] = field(default_factory=dict)  # the last one of each producer
    committed: dict[tuple[str, int], CommitRecord | None] = field(
        default_factory=dict
    )  # by producer and counter
    begun: dict[str, int | None] = field(default_factory=dict)  # the last attempt at one of each producer
    staged: list[tuple[StagedRecord, Batch]] = field(default_factory=list)
    unstaged: list[int] = field(default_factory=list)
    client_id: int | None = None  # the last client id given out
    position: int = 0  # the position after the last message of this group
    run: tuple[int, str] | None = None  # the broker's run, and where it began: with its first messages
    checkpoint: bool = False
    producers: list[ProducerRecord] = field(default_factory=list)
    forgotten: list[tuple[int, str]] = field(default_factory=list)  # producers, by topic and name
    forgotten_topics: list[int] = field(
        default_factory=list
    )  # removed topics whose names are not remembered any more
    first_offset: int | None = (
        None  # where topics begin from now on, so that no forgotten one's offsets come again
    )

    alone: bool = False  # nobody else waits: who commits it may be kept waiting, where that is quick

    @property
    def only_appends(self) -> bool:
        """True where all it does is append what has just been published."""
        return not self._more and set(map(type, self.appends)) <= {Append}

    @property
    def empty(self) -> bool:
        return not (self.appends or self._more)

    @property
    def _more(self) -> bool:
        return bool(
            self.topics
            or self.kept
            or self.subscriptions
            or self.cursors
            or self.skipped
            or self.forgotten_topics
            or self.transactions
            or self.committed
            or self.begun
            or self.staged
            or self.unstaged
            or self.client_id is not None
            or self.run is not None
            or self.checkpoint
        )


@dataclass(slots=True)
class Snapshot:
    """All that the broker has to know of what it did before. Messages stay in the store."""

    topics: Iterable[TopicRecord] = ()
    kept: Iterable[tuple[int, KeepRecord]] = ()  # by topic
    subscriptions: Iterable[SubscriptionRecord] = ()
    cursors: Iterable[tuple[int, int, CursorRecord]] = ()  # subscription, topic, cursor
    producers: Iterable[ProducerRecord] = ()
    recent: Iterable[Append] = ()  # appended since the producers were last written
    skipped: Iterable[tuple[int, int, int]] = ()
    transactions: Iterable[tuple[str, int]] = ()
    committed: Iterable[tuple[str, int, str, int]] = ()  # producer, counter, and the record
    begun: Iterable[tuple[str, int]] = ()
    staged: Iterable[StagedRecord] = ()
    runs: Iterable[tuple[int, str]] = ()
    client_id: int = 0
    position: int = 1
    first_offset: int = 1
    restored: int = 0  # the offset at which topics went on when a backup was restored
    # The highest numbers ever given out, also of what is left out since it is damaged.
    last_topic: int = 0
    last_subscription: int = 0
    last_staged: int = 0
    # Where something was damaged that cannot be put right:
    held: bool = False  # it is not known who waits for what, and nothing may be collected
    doubtful: set[int] = field(
        default_factory=set
    )  # topics of which it is not known how far producers have come
    lost_positions: int = 0  # so many at most are not known to be taken


class Usage(NamedTuple):
    """Bytes on the disk."""

    database: int
    wal: int  # the database's write-ahead log
    segments: int
    free: int  # for whoever runs the broker


class Span(NamedTuple):
    """Offsets of a topic, from `start` up to, not including, `stop`."""

    topic: int
    start: int
    stop: int


ReadNext: TypeAlias = Callable[[int, int], Awaitable[list[Batch]]]
"""The next batches, up to about so many bytes, where each message takes so many beside its payload; none at the end."""


class Store(Protocol):
    sync_seconds: Histogram  # how long commits waited for the disk

    @property
    def checkpoint_due(self) -> bool:
        """True when the next group should carry the producers' states."""

    async def open(self) -> Snapshot:
        """Take possession, or raise a `StoreError` that says what is in the way."""

    def write_ahead(self, batch: "ColumnBatch", done: Callable[[], None]) -> bool:
        """Put the messages of a large batch on the disk before it is committed, so that its commit is short; false
        where they are left to it. Else `done` is called, in another thread, when that is over, and until then the batch
        is not to be committed. It need not be committed at all. Any thread may call this."""

    def commit(self, group: Group) -> Awaitable[None]:
        """Make the group durable. What it returns is a future that is done where that was done at once."""

    async def read(self, topic: int, start: int, stop: int, size: int) -> list[Batch]:
        """Batches of the topic, in order and without gaps, from `start` up to `stop` or until `size` bytes of payload
        are passed. At least one message where there is any."""

    def scan(self, spans: Sequence[Span]) -> ReadNext:
        """The messages of several topics, in the order in which they were committed; those of a topic in the order of
        their offsets. What was collected is left out."""

    async def horizon(self, topic: int, *, before: int | None = None, size: int | None = None) -> int:
        """The lowest offset that retention keeps: the first of a batch not wholly older than `before` (microseconds),
        or within the last `size` bytes of payload."""

    async def locate(self, topic: int, time: int, first: int) -> int:
        """The offset of the first message from `first` on that is not older than `time` (microseconds); the end, where
        all are."""

    async def measure(self, topic: int, start: int) -> int:
        """Bytes of payload from this offset on, or close to it."""

    async def verify(self, staged: Sequence[int]) -> None:
        """Raise `StoreDamaged` where one of these staged batches is not as it was written."""

    async def sweep(self) -> bool:
        """Free some of the space of released messages; true where more is left to free."""

    async def usage(self) -> Usage:
        """How much room it takes, and how much is left."""

    async def ping(self) -> None:
        """Returns once whoever writes has done what was asked of him before: never, while he hangs."""

    async def close(self) -> None: ...
