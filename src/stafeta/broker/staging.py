"""Transactions: batches put aside unseen, then made visible all at once.

1. A transaction is named by its producer and that producer's counter. Once one is committed, it and every lower one
   are done: committing again changes nothing, so it may be asked for however often.
2. A transaction is staged in parts. Only the parts named in the commit become visible; the others, left by workers that
   failed or were too slow, are dropped.
3. To begin one drops what was staged for it before, and is an attempt of its own: who holds an earlier attempt is
   refused from then on, so that two programs never write one transaction together. Who names a counter, and no attempt,
   has parts of names that no other attempt has.
4. What is staged is as durable as what is published, and outlives a restart. What nobody commits is dropped in time.
5. Whoever commits may write a label on a transaction, which distinguishes a repeat from another write of the same
   name, and may say that the producer will not come again: it is forgotten later. Its parts are used up by then, so
   that whoever asks for its commit once more is refused, and nothing comes twice.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from stafeta.broker.portions import PORTION
from stafeta.broker.producer import repeated_of
from stafeta.broker.topic import Topic
from stafeta.errors import InvalidRequest, LimitReached, NotStaged, TakenOver
from stafeta.message import ROW, Batch, Row, RowBatch
from stafeta.names import check_name, check_producer
from stafeta.store.port import CommitRecord, Promotion, Snapshot, StagedRecord, topics_of

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker

EXPIRY = 24 * 3600 * 1_000_000  # microseconds
PIECE = 4 << 20  # bytes of payload put aside as one
MIXED = 1 << 20  # the same of several topics: more would make one that has little in it dear to read
VERIFIED = 1000  # that are looked at together before they are committed, if they are small
LABELS = 1000  # of a producer's last transactions that are kept

_V = TypeVar("_V")


class Staging:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._done: dict[str, int] = {}  # the last transaction committed by each producer
        self._committed: dict[
            str, dict[int, CommitRecord]
        ] = {}  # what is known beside, by producer and counter
        self._expiring: dict[str, int] = {}  # when producers are forgotten that will not come again
        self._due: list[
            tuple[int, str]
        ] = []  # the same as a heap, and some that are not to be forgotten then after all
        self._attempts: dict[str, int] = {}  # the last attempt that each producer has begun
        self._staged: dict[tuple[str, int], list[StagedRecord]] = {}  # the longest unchanged first
        self._rows: defaultdict[tuple[str, int], Counter[tuple[str, str | None]]] = defaultdict(
            Counter
        )  # by part, topic
        self._last = 0

    def recover(self, snapshot: Snapshot) -> None:
        self._done.update(snapshot.transactions)
        for producer, counter, label, expires in snapshot.committed:
            self._committed.setdefault(producer, {})[counter] = CommitRecord(label, expires)
            if expires and counter == self._done.get(producer):
                self._forget_at(producer, expires)
        self._attempts.update(snapshot.begun)
        self._last = snapshot.last_staged
        for record in snapshot.staged:
            self._last_of_all(record.producer, record.counter).append(record)
            for topic, rows in [*record.runs, (None, record.rows)]:
                self._rows[record.producer, record.counter][record.part, topic] += rows

    def begin(self, producer: str) -> tuple[int, int]:
        """Begin the transaction after the last that was committed, and drop what was staged for it before. Its counter,
        and the attempt: a number higher than that of any earlier one."""
        self._check_room(self._attempts, producer)
        counter = self.last(producer) + 1
        self._drop((producer, counter))
        before = self._attempts.get(producer)
        attempt = max(self._broker.now(), (before or 0) + 1)
        self._attempts[producer] = attempt
        pending = self._broker.commits.pending
        pending.group.begun[producer] = attempt

        def undo() -> None:
            if before is None:
                del self._attempts[producer]
            else:
                self._attempts[producer] = before

        pending.undo.append(undo)
        return counter, attempt

    def stage(
        self,
        producer: str,
        counter: int,
        part: str,
        topic: str,
        messages: Sequence[tuple[int, bytes]],
        source: str = "",
    ) -> asyncio.Future[None]:
        """Put messages (kind and payload) aside under a transaction; the future resolves when they are durable."""
        rows: list[Row] = [
            (at, 0, producer, source, kind, None, payload) for at, (kind, payload) in enumerate(messages)
        ]
        return self.stage_batch(producer, counter, part, topic, RowBatch(topic, 0, rows))

    def stage_batch(
        self,
        producer: str,
        counter: int,
        part: str,
        topic: str,
        batch: Batch,
        sequence: int | None = None,
        attempt: int | None = None,
    ) -> asyncio.Future[None]:
        """The same for messages that came together. Their times, where they have none yet, are 0.

        `sequence` numbers the first of them within the part and topic, so that one staged again is recognised."""
        if not self._is_open(producer, counter, attempt, [(topic, batch)]):
            return self._broker.commit()
        if sequence is not None:
            known = self._staged_rows(producer, counter, part, topic)
            repeated = repeated_of(known, sequence, batch.count)
            self._broker.totals.duplicates += repeated
            batch = batch.cut(batch.base + repeated, batch.end)
        for piece in batch.parts(PIECE):
            self._put_aside(producer, counter, part, topic, piece)
        return self._broker.commit()

    def stage_apart(
        self,
        producer: str,
        counter: int,
        part: str,
        batches: Sequence[RowBatch],
        sequence: int | None = None,
        attempt: int | None = None,
    ) -> asyncio.Future[None]:
        """The same for messages of several topics that came together: all of them, or none.

        `sequence` numbers the first of them within all of the part."""
        if not self._is_open(producer, counter, attempt, [(batch.topic, batch) for batch in batches]):
            return self._broker.commit()
        if sequence is not None:
            rows = sum(batch.count for batch in batches)
            repeated = repeated_of(self._staged_rows(producer, counter, part, None), sequence, rows)
            if repeated == rows:
                self._broker.totals.duplicates += rows
                return self._broker.commit()
            if repeated:
                raise InvalidRequest(
                    f"The messages from {sequence} on are in part {part!r} already, but not all: what is of several "
                    "topics is staged again as it was."
                )
        for some in _together(batches):
            if len(some) == 1:
                pieces: Sequence[Batch] = some[0].parts(PIECE)
            else:
                of_all = enumerate([row for one in some for row in one.rows])
                topic = topics_of((one.topic, one.count) for one in some)
                pieces = [RowBatch(topic, 0, [(at, *row[1:]) for at, row in of_all])]
            for piece in pieces:
                self._put_aside(producer, counter, part, piece.topic, piece)
        return self._broker.commit()

    def _is_open(
        self, producer: str, counter: int, attempt: int | None, batches: Iterable[tuple[str, Batch]]
    ) -> bool:
        """Whether these may be added to the transaction: not where it is committed."""
        check_producer(producer)
        known = self._broker.topics
        for topic, batch in batches:
            if topic not in known:
                check_name(topic)
            self._broker.check_writable(topic)
            self._broker.check_longest(batch)
        self._check_attempt(producer, counter, attempt)
        return not self.is_done(producer, counter)

    def _staged_rows(self, producer: str, counter: int, part: str, topic: str | None) -> int:
        """How many messages of a topic, or of all, are staged in a part."""
        return self._rows.get((producer, counter), Counter())[part, topic]

    def _last_of_all(self, producer: str, counter: int) -> list[StagedRecord]:
        """What is staged of a transaction, which goes to the end of all."""
        key = producer, counter
        staged = self._staged[key] = self._staged.pop(key, [])
        return staged

    def _put_aside(self, producer: str, counter: int, part: str, topic: str, batch: Batch) -> None:
        staged = self._last_of_all(producer, counter)
        self._last += 1
        now = self._broker.now()
        record = StagedRecord(self._last, producer, counter, part, topic, batch.count, batch.size, now)
        staged.append(record)
        rows = self._rows[producer, counter]
        added = [*record.runs, (None, batch.count)]
        for name, count in added:
            rows[part, name] += count
        pending = self._broker.commits.pending
        pending.group.staged.append((record, batch))
        pending.size += batch.size + ROW * batch.count

        def undo() -> None:
            if staged[-1] is record:
                staged.pop()
            else:
                staged.remove(record)
            for name, count in added:
                rows[part, name] -= count
            if not staged:
                self._staged.pop((producer, counter), None)
                self._rows.pop((producer, counter), None)

        pending.undo.append(undo)

    async def prepare(
        self,
        producer: str,
        counter: int,
        parts: Mapping[str, int | None] | Iterable[str] | None = None,
        attempt: int | None = None,
    ) -> None:
        """Call before `commit`: looks at what was staged, and makes its topics where they are many, a portion in each
        group. `commit` itself is done in one turn."""
        await self.verify(producer, counter)
        self._check_attempt(producer, counter, attempt)
        if self.is_done(producer, counter):
            return
        staged = self._staged.get((producer, counter), [])
        wanted = self._wanted(producer, counter, staged, parts)
        commits, registry = self._broker.commits, self._broker.registry
        names = [name for name in self._names(staged, wanted) if not self._is_ready(name)]
        if len(names) <= PORTION:
            return
        registry.check_room(sum(not registry.exists(name) for name in names))
        for start in range(0, len(names), PORTION):
            for name in names[start : start + PORTION]:
                topic = self._made(name)
                if topic.wildcard_generation != commits.wildcard_generation:
                    commits.add_wildcard_cursors(topic)
            commit = commits.commit()
            await asyncio.wait([commit])
            commit.result()

    async def verify(self, producer: str, counter: int) -> None:
        """Raises StoreDamaged where what was staged is not as it came."""
        some: list[int] = []
        size = 0
        for record in list(self._staged.get((producer, counter), [])):
            some.append(record.id)
            size += record.size
            if size >= PIECE or len(some) >= VERIFIED:  # so that others can read meanwhile
                await self._broker.log.verify(some)
                some, size = [], 0
        await self._broker.log.verify(some)

    def commit(
        self,
        producer: str,
        counter: int,
        parts: Mapping[str, int | None] | Iterable[str] | None = None,
        attempt: int | None = None,
        label: str = "",
        forget_after: int | None = None,
    ) -> asyncio.Future[None]:
        """Make the named parts of a transaction visible (None: all), in this order, unless it was committed before.
        Where parts come with numbers of rows, they must have so many. With `forget_after` (microseconds) it is the
        producer's last."""
        self._check_attempt(producer, counter, attempt)
        if not self.is_done(producer, counter):
            self._check_room(self._done, producer)
            staged = self._staged.get((producer, counter), [])
            wanted = self._wanted(producer, counter, staged, parts)
            # All of them first: one that cannot be made must leave nothing promoted.
            topics = {name: self._made(name) for name in self._names(staged, wanted)}
            for record in sorted(staged, key=lambda record: wanted.get(record.part, 0)):
                if record.part in wanted:
                    self._promote(topics, record)
                else:
                    self._broker.commits.pending.group.unstaged.append(record.id)
            expires = 0 if forget_after is None else self._broker.now() + forget_after
            self._finish(producer, counter, CommitRecord(label, expires))
        return self._broker.commit()

    def _wanted(
        self,
        producer: str,
        counter: int,
        staged: Sequence[StagedRecord],
        parts: Mapping[str, int | None] | Iterable[str] | None,
    ) -> dict[str, int]:
        """The places of parts among those that are to be committed."""
        rows: Counter[str] = Counter()
        for record in staged:
            rows[record.part] += record.rows
        named = rows if parts is None else parts
        expected = named if isinstance(named, Mapping) else dict.fromkeys(named)
        for part, count in expected.items():
            if part not in rows:
                raise NotStaged(
                    f"Transaction {counter} of {producer!r} has no part {part!r}: it was never staged, or was dropped "
                    "because it waited too long."
                )
            if count is not None and count != rows[part]:
                raise NotStaged(
                    f"Part {part!r} of transaction {counter} of {producer!r} has {rows[part]} rows, not {count}: the "
                    "others were never staged, or the transaction was aborted meanwhile."
                )
        return {part: place for place, part in enumerate(expected)}

    def abort(self, producer: str, counter: int, attempt: int | None = None) -> asyncio.Future[None]:
        """Drop what was staged under a transaction. Of an earlier attempt there is nothing left."""
        if attempt in (None, self._attempts.get(producer)):
            self._drop((producer, counter))
        return self._broker.commit()

    def expire(self) -> bool:
        """Drop some of the transactions that nobody has committed in time, and forget some of the producers whose time
        is over; true where there are more."""
        now = self._broker.now()
        limit = now - EXPIRY
        for _ in range(PORTION):
            if not self._due or self._due[0][0] > now:
                break
            expires, producer = heappop(self._due)
            if self._expiring.get(producer) != expires:
                continue  # it came again, or is forgotten
            attempt = self._attempts.get(producer, 0)
            if attempt < limit:
                self._forget(producer)
            else:  # it may come again after all
                self._forget_at(producer, attempt + EXPIRY + 1)
        longest, dropped = list(islice(self._staged.items(), PORTION)), 0
        for key, staged in longest:
            if staged[-1].time > now:  # the clock was ahead: others do not wait behind it
                self._last_of_all(*key)
            elif staged[-1].time >= limit:
                break
            else:
                self._drop(key)
                dropped += 1
        return dropped > 0 or (bool(self._due) and self._due[0][0] <= now)

    def _forget_at(self, producer: str, expires: int) -> None:
        self._expiring[producer] = expires
        heappush(self._due, (expires, producer))

    def topics(self, producer: str, counter: int) -> set[str]:
        """The topics of what is staged for a transaction."""
        staged = self._staged.get((producer, counter), [])
        return {name for record in staged for name, _ in record.runs}

    def is_done(self, producer: str, counter: int) -> bool:
        """True if this transaction, or a later one, was committed."""
        return counter <= self.last(producer)

    def last(self, producer: str) -> int:
        """The last transaction that the producer committed; -1 where there is none."""
        return self._done.get(producer, -1)

    def label(self, producer: str, counter: int) -> str | None:
        """What was written on a transaction as it was committed; None where that is not known, or not any more."""
        record = self._committed.get(producer, {}).get(counter)
        return None if record is None or not record.label else record.label

    def _check_room(self, known: Mapping[str, int], producer: str) -> None:
        if producer not in known and len(known) >= self._broker.limits.max_producers:
            raise LimitReached(
                f"{len(known)} producers of transactions are remembered, as many as limits.max_producers allows."
            )

    def _check_attempt(self, producer: str, counter: int, attempt: int | None) -> None:
        if attempt not in (None, self._attempts.get(producer)):
            raise TakenOver(
                f"{producer!r} has begun a transaction again since, here or in another program: what was written for "
                f"number {counter} in this attempt is dropped, unless it was committed before."
            )

    def _names(self, staged: Iterable[StagedRecord], wanted: Mapping[str, int]) -> set[str]:
        return {name for record in staged if record.part in wanted for name, _ in record.runs}

    def _is_ready(self, name: str) -> bool:
        """Whether there is the topic, with all cursors that it needs."""
        generation = self._broker.commits.wildcard_generation
        return (
            self._broker.registry.exists(name) and self._broker.topics[name].wildcard_generation == generation
        )

    def _made(self, name: str) -> Topic:
        topic = self._broker.registry.topic_for(name, create=True)
        self._broker.collector.dirty.add(topic)  # it goes again, where nothing comes of it
        return topic

    def _promote(self, topics: Mapping[str, Topic], record: StagedRecord) -> None:
        commits, now, row = self._broker.commits, self._broker.now(), 0
        for name, rows in record.runs:
            topic = topics[name]
            promotion = Promotion(record.id, topic.id, topic.next, rows, commits.position, now, row)
            commits.pending.append_whole(topic, promotion, rows)
            commits.position += rows
            row += rows

    def _finish(self, producer: str, counter: int, record: CommitRecord) -> None:
        pending = self._broker.commits.pending
        self._restore_later(producer)
        staged = self._staged.pop((producer, counter), None)
        rows = self._rows.pop((producer, counter), Counter())
        self._done[producer] = counter
        pending.group.transactions[producer] = counter
        self._expiring.pop(producer, None)
        if record.expires:
            self._forget_at(producer, record.expires)
        if record.label or record.expires:
            known = self._committed.setdefault(producer, {})
            known[counter] = record
            pending.group.committed[producer, counter] = record
            if len(known) > LABELS:
                oldest = next(iter(known))  # they are committed in order
                del known[oldest]
                pending.group.committed[producer, oldest] = None

        def undo() -> None:
            if staged is not None:
                self._staged[producer, counter] = staged
                self._rows[producer, counter] = rows

        pending.undo.append(undo)

    def _forget(self, producer: str) -> None:
        group = self._broker.commits.pending.group
        self._restore_later(producer)
        del self._expiring[producer]
        self._done.pop(producer, None)
        group.transactions[producer] = None
        if self._attempts.pop(producer, None) is not None:
            group.begun[producer] = None
        for counter in self._committed.pop(producer, {}):
            group.committed[producer, counter] = None

    def _restore_later(self, producer: str) -> None:
        """What is known now of a producer's commits is what will be known if the group cannot be written."""
        done, expires = self._done.get(producer), self._expiring.get(producer)
        attempt = self._attempts.get(producer)
        committed = self._committed.get(producer)
        committed = None if committed is None else dict(committed)

        def undo() -> None:
            _put_back(self._done, producer, done)
            self._expiring.pop(producer, None)
            if expires is not None:
                self._forget_at(producer, expires)
            _put_back(self._attempts, producer, attempt)
            _put_back(self._committed, producer, committed)

        self._broker.commits.pending.undo.append(undo)

    def _drop(self, key: tuple[str, int]) -> None:
        staged = self._staged.pop(key, None)
        rows = self._rows.pop(key, Counter())
        if staged is None:
            return
        pending = self._broker.commits.pending
        pending.group.unstaged += [record.id for record in staged]

        def undo() -> None:
            self._staged[key] = staged
            self._rows[key] = rows

        pending.undo.append(undo)


def _together(batches: Iterable[RowBatch]) -> Iterator[list[RowBatch]]:
    """The batches in portions that are put aside as one."""
    some: list[RowBatch] = []
    size = 0
    for batch in batches:
        if some and size + batch.size > MIXED:
            yield some
            some, size = [], 0
        some.append(batch)
        size += batch.size
    if some:
        yield some


def _put_back(known: dict[str, _V], key: str, value: _V | None) -> None:
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value
