"""The commit loop.

1. What happens between two commits forms one group; the group is written in one transaction, by the store, while the
   next one grows. Under load groups grow by themselves.
2. A change is made in memory at once and leaves behind how to undo it. If the commit fails, the group and the one that
   grew on top of it are undone, the last change first, and everyone who waited is told why.
3. A receipt is the group's future: it resolves when the group is durable.
"""

import asyncio
import logging
from collections.abc import Callable

from stafeta.broker.cursor import Cursor
from stafeta.broker.producer import Producer
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import StoreError
from stafeta.message import Batch, Row, RowBatch
from stafeta.store.port import Append, CursorRecord, Group, ProducerRecord, Promotion, Store

log = logging.getLogger("stafeta.broker")


class Pending:
    """A group while it grows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.group = Group()
        self.appends: list[
            tuple[Topic, int, list[Row] | Batch | Promotion]
        ] = []  # topic, base offset, and what
        self.rows: dict[Topic, list[Row]] = {}  # those of them that still grow
        self.topics: set[Topic] = set()
        self.cursors: dict[tuple[Subscription, Topic], Cursor | None] = {}
        self.producers: set[tuple[Topic, str]] = set()  # those whose state changed
        self.undo: list[Callable[[], None]] = []
        self.size = 0
        self.asked = False  # someone waits for it, even if it is empty
        self.done: asyncio.Future[None] = loop.create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def append_to(self, topic: Topic) -> list[Row]:
        """The rows to which messages of this topic are added."""
        rows = self.rows.get(topic)
        if rows is None:
            rows = self.rows[topic] = []
            self._append(topic, rows)
        return rows

    def append_whole(self, topic: Topic, what: Batch | Promotion, count: int) -> None:
        """Let a batch that came as one, now or when it was staged, take its place in the topic."""
        self.rows.pop(topic, None)
        self._append(topic, what)
        topic.next += count

    def _append(self, topic: Topic, what: list[Row] | Batch | Promotion) -> None:
        self.appends.append((topic, topic.next, what))

    def remember(self, topic: Topic, name: str, producer: Producer) -> None:
        """Call before a producer's state changes."""
        key = (topic, name)
        if key in self.producers:
            return
        self.producers.add(key)
        assert topic.producers is not None
        known, before = topic.producers, producer.copy()

        def undo() -> None:
            known[name] = before

        self.undo.append(undo)

    def moved(self, subscription: Subscription, topic: Topic, cursor: Cursor, before: Cursor) -> None:
        """The cursor of a durable subscription has changed from what it was before."""

        def undo() -> None:
            cursor.floor, cursor.above = before.floor, before.above

        self.undo.append(undo)
        self.cursors[subscription, topic] = cursor

    def seal(self) -> Group:
        group = self.group
        group.appends = [
            Append(topic.id, RowBatch(topic.name, base, what))
            if isinstance(what, list)
            else what
            if isinstance(what, Promotion)
            else Append(topic.id, what)
            for topic, base, what in self.appends
        ]
        group.topics = {topic.id: topic.record() for topic in self.topics}
        group.cursors = {
            (subscription.id, topic.id): None if cursor is None else CursorRecord(cursor.floor, cursor.above)
            for (subscription, topic), cursor in self.cursors.items()
        }
        return group


class CommitLoop:
    """`committed` is called with each group that has become durable, before its receipts resolve."""

    def __init__(self, store: Store, committed: Callable[[Pending, Group], None]) -> None:
        self._store = store
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._unwritten: set[tuple[Topic, str]] = set()  # producers that changed since the checkpoint
        self.pending = Pending(self._loop)
        # Asked when a group is about to be written: adds what can wait until then; true where there was any.
        self.fill: Callable[[], bool] = lambda: False
        self.position = 1
        self.backlog = 0  # bytes in the group that is being written
        self.failures = 0  # commits that failed since one worked
        self.checkpoint_wanted = False

    def receipt(self) -> asyncio.Future[None]:
        """Resolves when all that has happened so far is durable. Shared: do not cancel it."""
        self.pending.asked = True
        self.wake()
        return self.pending.done

    def wake(self) -> None:
        """There is something to commit, or to fill a group with."""
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    @property
    def size(self) -> int:
        """Bytes of payload that are not durable yet."""
        return self.pending.size + self.backlog

    def recovered(self, topic: Topic, producer: str) -> None:
        self._unwritten.add((topic, producer))

    async def _run(self) -> None:
        try:
            while self.fill() or self.pending.asked:
                current, self.pending = self.pending, Pending(self._loop)
                self.backlog = current.size
                group = current.seal()
                group.position = self.position
                if self._store.checkpoint_due or self.checkpoint_wanted:
                    self._checkpoint(group, self._unwritten | current.producers)
                try:
                    if not group.empty:
                        await self._store.commit(group)
                except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
                    self._fail(current, error)
                else:
                    self._worked()
                    if group.checkpoint:
                        self._unwritten.clear()
                    else:
                        self._unwritten |= current.producers
                    self._committed(current, group)
                    current.done.set_result(None)
        finally:
            self.backlog = 0
            self._task = None

    def _checkpoint(self, group: Group, producers: set[tuple[Topic, str]]) -> None:
        group.checkpoint = True
        self.checkpoint_wanted = False
        for topic, name in producers:
            producer = (topic.producers or {}).get(name)
            if producer is not None:
                group.producers.append(ProducerRecord(topic.id, name, producer.encode()))

    def _worked(self) -> None:
        if self.failures:
            log.info("messages are stored again", extra={"fields": {"failed": self.failures}})
            self.failures = 0

    def _fail(self, current: Pending, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:  # a full disk may fail a thousand times a second
            log.error("messages are refused: %s", error)
        if not isinstance(error, StoreError):
            log.error("a commit failed for a reason that it should not have", exc_info=error)
            error = StoreError(f"The broker could not store this: {error!r}. Nothing was changed.")
        grown, self.pending = self.pending, Pending(self._loop)
        for undo in reversed(current.undo + grown.undo):
            undo()
        for topic, base, _ in reversed(current.appends + grown.appends):
            topic.next = base
        for pending in (current, grown):
            pending.done.set_exception(error)
