"""The commit loop.

1. What happens between two commits forms one group; the group is written in one transaction, by the store, while the
   next one grows. Under load groups grow by themselves.
2. A change is made in memory at once and leaves behind how to undo it. If the commit fails, the group and the one that
   grew on top of it are undone, the last change first, and everyone who waited gets the error.
3. `commit()` returns the group's future, which resolves when the group is durable; what `answer()` was given is called
   then at once.
4. A door adds about `DOOR_SHARE` bytes to a group; what more it has waits for the next, so that nobody waits for long
   behind somebody else's bulk. Among its connections a door takes turns. What was written ahead counts for little.
5. What has nobody to report an error to, such as that a device has got its messages, is done again after a while,
   until it is durable.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar

from stafeta.broker.counts import Counts
from stafeta.broker.cursor import Cursor, Move
from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import StafetaError, StoreError
from stafeta.logs import fatal
from stafeta.message import Batch, Row, RowBatch
from stafeta.store.port import Append, CursorChange, Group, ProducerRecord, Promotion, Store

log = logging.getLogger("stafeta.broker")

T = TypeVar("T")

MOVE = 64  # bytes that a range counts for which is acknowledged out of order
DOOR_SHARE = 1 << 20  # bytes of one door in a group, after which it waits for the next
AHEAD_PART = (
    8  # what was written ahead counts there for this part of its bytes: its commit does not write them
)
RETRY_INTERVAL = (
    1.0  # seconds until what could not be stored is done again, or until the log says that it is over
)

REFUSED_FOR = 10.0  # seconds for which a commit that failed says that the next would, too


class ChangedCursor(NamedTuple):
    """A cursor that a group changes, and what becomes of its ranges: see `CursorChange`."""

    cursor: Cursor
    ranges: dict[int, int | None]
    whole: bool


class Pending:
    """A group while it grows."""

    def __init__(self, commits: "CommitLoop", loop: asyncio.AbstractEventLoop) -> None:
        self._commits = commits
        self.group = Group()
        self.appends: list[
            tuple[Topic, int, list[Row] | Batch | Promotion]
        ] = []  # topic, base offset, and what
        self.rows: dict[Topic, list[Row]] = {}  # those of them that still grow
        self.topics: set[Topic] = set()
        self.cursors: dict[tuple[Subscription, Topic], ChangedCursor] = {}
        self.producers: set[tuple[Topic, str]] = set()  # those whose state changed
        self.undo: list[Callable[[], object]] = []
        self.again: list[Callable[[], None]] = []  # what is done again where it could not be stored
        self.size = 0
        self.ahead = 0  # bytes of it that were written ahead
        self.acknowledged = 0  # messages, by durable subscriptions
        self.collected = 0  # messages
        self.asked = False  # someone waits for it, even if it is empty
        self.sealed: list[Callable[[], None]] = []  # called when it grows no more, and the next one does
        self.answers: list[Callable[[StafetaError | None], object]] = []
        self.done: asyncio.Future[None] = loop.create_future()

    @property
    def has_single_messages(self) -> bool:
        """True where messages are in it that came one by one."""
        return bool(self.rows)

    def append_to(self, topic: Topic) -> list[Row]:
        """The rows to which messages of this topic are added."""
        rows = self.rows.get(topic)
        if rows is None:  # with many topics, for every message: what is called here would be felt
            if topic.wildcard_generation != self._commits.wildcard_generation:
                self._commits.add_wildcard_cursors(topic)
            rows = self.rows[topic] = []
            self.appends.append((topic, topic.next, rows))
        return rows

    def append_whole(self, topic: Topic, what: Batch | Promotion, count: int) -> None:
        """Let a batch that came as one, now or when it was staged, take its place in the topic."""
        self.rows.pop(topic, None)
        if topic.wildcard_generation != self._commits.wildcard_generation:
            self._commits.add_wildcard_cursors(topic)
        self.appends.append((topic, topic.next, what))
        topic.next += count

    def moved(self, subscription: Subscription, topic: Topic, cursor: Cursor, moves: Sequence[Move]) -> None:
        """The cursor of a durable subscription has made these moves."""

        def undo() -> None:
            for move in reversed(moves):
                cursor.take_back(move)

        self.undo.append(undo)
        changed = self.cursors.get((subscription, topic))
        if changed is None:
            changed = self.cursors[subscription, topic] = ChangedCursor(cursor, {}, whole=False)
        ranges = changed.ranges
        self.acknowledged += cursor.floor - moves[0].floor
        for _, dropped, added in moves:
            if dropped or added:
                self.acknowledged += _messages(added) - _messages(dropped)
            gone, come = set(dropped).difference(added), set(added).difference(dropped)
            ranges.update(dict.fromkeys([start for start, _ in gone]))
            ranges.update(come)
            self.size += MOVE * (len(gone) + len(come))

    def keep(self, subscription: Subscription, topic: Topic, cursor: Cursor) -> None:
        """The cursor is to be stored from now on."""
        self.cursors[subscription, topic] = ChangedCursor(
            cursor, dict(cursor.above) if cursor.gaps else {}, whole=True
        )

    def settle(self, error: StafetaError | None) -> None:
        """It is durable, or could not be made so: whoever waits gets to know."""
        for answer in self.answers:
            try:
                answer(error)
            except Exception:
                log.exception("someone could not be told of a commit, and may wait in vain")
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # whether or not anybody waits for it

    def seal(self) -> Group:
        group = self.group
        make = tuple.__new__  # with many topics one is made for every message
        group.appends = [
            make(Append, (topic.id, RowBatch(topic.name, base, what)))
            if isinstance(what, list)
            else what
            if isinstance(what, Promotion)
            else Append(topic.id, what)
            for topic, base, what in self.appends
        ]
        group.topics = {topic.id: topic.record() for topic in self.topics}
        group.cursors = {
            (subscription.id, topic.id): CursorChange(changed.cursor.floor, changed.ranges, changed.whole)
            for (subscription, topic), changed in self.cursors.items()
            # Else it was taken from it since.
            if subscription.durable and subscription.cursors.get(topic) is changed.cursor
        }
        return group


class Share:
    """What one door adds to groups."""

    def __init__(self, commits: "CommitLoop") -> None:
        self._commits = commits
        self._pending: Pending | None = None  # the group that it was last counted for
        self._left = 0
        self.size = DOOR_SHARE  # bytes of the groups to come

    def count(self, work: Callable[[], T]) -> T:
        """Do something that may add to the group that grows, and count what it added."""
        pending = self._commits.pending
        if pending is not self._pending:
            self._pending, self._left = pending, self.size
        before, ahead = pending.size, pending.ahead
        done = work()
        ahead = pending.ahead - ahead
        self._left -= pending.size - before - ahead + ahead // AHEAD_PART
        return done

    @property
    def spent(self) -> bool:
        """True where the next group has to be waited for."""
        return self._pending is self._commits.pending and self._left <= 0

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call it, soon after the next group has begun to grow."""
        self._commits.pending.sealed.append(callback)
        self._commits.commit()


class CommitLoop:
    """`committed` is called with each group that has become durable, before its future resolves."""

    def __init__(self, store: Store, counts: Counts, committed: Callable[[Pending, Group], None]) -> None:
        self._store = store
        self._counts = counts
        self._committed = committed
        self._began = 0.0  # when the group was given to the store that is being written
        self._loop = asyncio.get_running_loop()
        self._running = False  # a group is being written, or is about to be
        self._writing: asyncio.Future[None] | None = None
        self._unanswered: list[Pending] = []  # groups that are durable
        self._unwritten: set[tuple[Topic, str]] = set()  # producers that changed since the checkpoint
        self._forgotten: set[tuple[Topic, str]] = set()  # and those that were forgotten
        self.pending = Pending(self, self._loop)
        # Counts the wildcard subscriptions that have come, and gives them cursors on a topic to which something comes.
        self.wildcard_generation = 1
        self.add_wildcard_cursors: Callable[[Topic], None] = lambda topic: None
        # Asked when a group is about to be written: adds what can wait until then; true where there was any.
        self.fill: Callable[[], bool] = lambda: False
        self.position = 1
        self._durable = 1  # the position after all that is
        self.backlog = 0  # bytes in the group that is being written
        self.failures = 0  # commits that failed since messages could be stored
        self._failed = 0.0  # when the last of them did
        self._why = ""  # and for what reason
        self._again: list[Callable[[], None]] = []
        self.checkpoint_wanted = False
        self.run: tuple[int, str] | None = None  # of this broker, until it is stored

    def begin_at(self, position: int) -> None:
        """Number messages from here on."""
        self.position = self._durable = position

    def commit(self) -> asyncio.Future[None]:
        """Resolves when all that has happened so far is durable. Shared: do not cancel it."""
        self.pending.asked = True
        self.wake()
        return self.pending.done

    def answer(self, answer: Callable[[StafetaError | None], object]) -> None:
        """Call this as soon as all that has happened so far is durable, or could not be made so: without another turn
        of the loop, and before the future of `commit` resolves."""
        self.pending.answers.append(answer)
        self.commit()

    def wake(self) -> None:
        """There is something to commit, or to fill a group with."""
        if not self._running:
            self._running = True
            self._loop.call_soon(self._write_next)

    @property
    def size(self) -> int:
        """Bytes of payload that are not durable yet."""
        return self.pending.size + self.backlog

    def forget(self, topic: Topic, producer: str) -> None:
        """A producer's state is not kept any longer."""
        self._forgotten.add((topic, producer))

    def recovered(self, topic: Topic, producer: str) -> None:
        self._unwritten.add((topic, producer))

    def wildcards_changed(self) -> None:
        """A wildcard subscription has come: whatever comes to a topic next makes a cursor for it."""
        self.wildcard_generation += 1
        self.pending.rows.clear()

    def _write_next(self) -> None:
        """Have the group written that has grown until now, if anybody wants it to be."""
        self._writing = None
        try:
            while self._writing is None and (self.fill() or self.pending.asked):
                self._writing = self._write(self._begin_next())
        finally:
            if self._writing is None:
                self._running = False
                self.backlog = 0
            durable, self._unanswered = self._unanswered, []
            for pending in durable:  # the disk works meanwhile
                pending.settle(None)

    def _write(self, current: Pending) -> "asyncio.Future[None] | None":
        """What has to be waited for; None where there is nothing to write."""
        self.backlog = current.size
        group = current.seal()
        group.position = self.position
        group.run = self.run if group.appends else None
        forgotten: frozenset[tuple[Topic, str]] = frozenset()
        if self._store.checkpoint_due or self.checkpoint_wanted:
            forgotten = frozenset(self._forgotten)
            self._checkpoint(group, self._unwritten | current.producers, forgotten)
        if group.empty:
            self._stored(current, group, forgotten)
            return None
        self._began = perf_counter()
        group.alone = not self._unanswered
        try:
            writing = asyncio.ensure_future(self._store.commit(group))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must get it
            self._fail(current, error)
            return None
        if writing.done() and writing.exception() is None:
            self._count(current, group)
            self._stored(current, group, forgotten)
            return None
        writing.add_done_callback(partial(self._written, current, group, forgotten))
        return writing

    def _written(
        self,
        current: Pending,
        group: Group,
        forgotten: frozenset[tuple[Topic, str]],
        written: asyncio.Future[None],
    ) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            self._count(current, group)
            self._stored(current, group, forgotten)
        else:
            self._fail(current, error)
        self._write_next()

    def _count(self, current: Pending, group: Group) -> None:
        counts = self._counts
        counts.commit_seconds.add(perf_counter() - self._began)
        counts.commit_messages.add(group.position - self._durable)
        counts.commit_bytes += current.size
        counts.acknowledged += current.acknowledged
        counts.collected += current.collected

    def _stored(self, current: Pending, group: Group, forgotten: frozenset[tuple[Topic, str]]) -> None:
        self._durable = group.position
        if group.appends or group.staged:
            self._worked()
        if group.run is not None:
            self.run = None
        if group.checkpoint:
            self._unwritten.clear()
            self._forgotten.difference_update(forgotten)
        else:
            self._unwritten |= current.producers
        try:
            self._committed(current, group)
        except Exception:  # noqa: BLE001 - what is in memory is not what is stored any more
            fatal(log, "what was stored cannot be shown to anybody")
        self._unanswered.append(current)

    def _begin_next(self) -> Pending:
        """Returns the group that has grown until now."""
        current, self.pending = self.pending, Pending(self, self._loop)
        for callback in current.sealed:
            self._loop.call_soon(callback)
        return current

    def _checkpoint(
        self, group: Group, producers: set[tuple[Topic, str]], forgotten: Iterable[tuple[Topic, str]]
    ) -> None:
        group.checkpoint = True
        self.checkpoint_wanted = False
        for topic, name in producers:
            producer = (topic.producers or {}).get(name)
            if producer is not None:
                group.producers.append(ProducerRecord(topic.id, name, producer.encode()))
        group.forgotten = [
            (topic.id, name) for topic, name in forgotten if name not in (topic.producers or {})
        ]

    def refusing(self) -> str | None:
        """Why the last commit failed, while that was a moment ago and none has succeeded since."""
        if not self.failures or self._loop.time() > self._failed + REFUSED_FOR:
            return None
        return self._why

    def _worked(self) -> None:
        # Small ones may be stored between large ones that are not.
        if self.failures and self._loop.time() > self._failed + RETRY_INTERVAL:
            log.info("messages are stored again", extra={"fields": {"failed": self.failures}})
            self.failures = 0

    def _fail(self, current: Pending, error: BaseException) -> None:
        self.failures += 1
        self._counts.failed_commits += 1
        self._failed = self._loop.time()
        if self.failures == 1:  # a full disk may fail a thousand times a second
            log.error("messages are refused: %s", error)
        if not isinstance(error, StoreError):
            log.error("a commit failed for a reason that it should not have", exc_info=error)
            error = StoreError(f"The broker could not store this: {error!r}. Nothing was changed.")
        self._why = str(error)
        grown = self._begin_next()
        for undo in reversed(current.undo + grown.undo):
            undo()
        for topic, base, _ in reversed(current.appends + grown.appends):
            topic.next = base
        # Nobody may learn of positions that a broker which starts again will give to other messages.
        self.position = self._durable
        if not self._again and (current.again or grown.again):
            self._loop.call_later(RETRY_INTERVAL, self._do_again)
        for pending in (current, grown):
            self._again += pending.again
            pending.settle(error)

    def _do_again(self) -> None:
        again, self._again = self._again, []
        for one in again:
            one()
        self.commit()


def _messages(spans: Sequence[tuple[int, int]]) -> int:
    return sum([stop - start for start, stop in spans])
