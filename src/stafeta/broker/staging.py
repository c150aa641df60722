"""Transactions: batches put aside unseen, then made visible all at once.

1. A transaction is named by its producer and that producer's counter. Once one is committed, it and every lower one
   are done: committing again changes nothing, so it may be asked for however often.
2. A transaction is staged in parts. Only the parts named in the commit become visible; the others, left by workers that
   failed or were too slow, are dropped.
3. What is staged is as durable as what is published, and outlives a restart. What nobody commits is dropped in time.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stafeta.broker.names import check_client, check_name
from stafeta.broker.topic import Topic
from stafeta.errors import InvalidMessage, NotStaged
from stafeta.message import Row, RowBatch
from stafeta.store.port import Promotion, Snapshot, StagedRecord

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker

EXPIRY = 24 * 3600 * 1_000_000  # microseconds


class Staging:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._done: dict[str, int] = {}  # the last transaction committed by each producer
        self._staged: dict[tuple[str, int], list[StagedRecord]] = {}
        self._last = 0

    def recover(self, snapshot: Snapshot) -> None:
        self._done.update(snapshot.transactions)
        for record in snapshot.staged:
            self._staged.setdefault((record.producer, record.counter), []).append(record)
            self._last = max(self._last, record.id)

    def stage(
        self,
        producer: str,
        counter: int,
        part: str,
        topic: str,
        messages: Sequence[tuple[int, bytes]],
        source: str = "",
    ) -> asyncio.Future[None]:
        """Put messages (kind and payload) aside under a transaction; the receipt says when they are durable."""
        check_client(producer)
        check_name(topic)
        longest = max((len(payload) for _, payload in messages), default=0)
        if longest > self._broker.limits.payload:
            raise InvalidMessage(
                f"A message is {longest} bytes long; at most {self._broker.limits.payload} are allowed "
                "(limits.max_payload)."
            )
        if messages and not self._is_done(producer, counter):
            rows: list[Row] = [
                (at, 0, producer, source, kind, counter, payload)
                for at, (kind, payload) in enumerate(messages)
            ]
            batch = RowBatch(topic, 0, rows)
            self._last += 1
            record = StagedRecord(
                self._last, producer, counter, part, topic, batch.count, batch.size, self._broker.now()
            )
            staged = self._staged.setdefault((producer, counter), [])
            staged.append(record)
            pending = self._broker.commits.pending
            pending.group.staged.append((record, batch))
            pending.size += batch.size
            pending.undo.append(lambda: staged.remove(record))
        return self._broker.receipt()

    def commit(self, producer: str, counter: int, parts: Iterable[str] | None = None) -> asyncio.Future[None]:
        """Make the named parts of a transaction visible (None: all), unless it was committed before."""
        if not self._is_done(producer, counter):
            staged = self._staged.get((producer, counter), [])
            wanted = {record.part for record in staged} if parts is None else set(parts)
            missing = wanted - {record.part for record in staged}
            if missing:
                raise NotStaged(
                    f"Transaction {counter} of {producer!r} has no part {min(missing)!r}: it was never staged, or "
                    "was dropped because it waited too long."
                )
            for record in staged:
                if record.part in wanted:
                    self._promote(self._broker.topic_for(record.topic, create=True), record)
                else:
                    self._broker.commits.pending.group.unstaged.append(record.id)
            self._finish(producer, counter)
        return self._broker.receipt()

    def abort(self, producer: str, counter: int) -> asyncio.Future[None]:
        """Drop what was staged under a transaction."""
        self._drop((producer, counter))
        return self._broker.receipt()

    def expire(self) -> None:
        """Drop the transactions that nobody has committed in time."""
        limit = self._broker.now() - EXPIRY
        for key in [
            key for key, staged in self._staged.items() if all(record.time < limit for record in staged)
        ]:
            self._drop(key)

    def _is_done(self, producer: str, counter: int) -> bool:
        return counter <= self._done.get(producer, -1)

    def _promote(self, topic: Topic, record: StagedRecord) -> None:
        commits = self._broker.commits
        promotion = Promotion(
            record.id, topic.id, topic.next, record.rows, commits.position, self._broker.now()
        )
        commits.pending.promote(topic, promotion, record.rows)
        commits.position += record.rows

    def _finish(self, producer: str, counter: int) -> None:
        pending = self._broker.commits.pending
        before = self._done.get(producer, -1)
        staged = self._staged.pop((producer, counter), None)
        self._done[producer] = counter
        pending.group.transactions[producer] = counter

        def undo() -> None:
            self._done[producer] = before
            if staged is not None:
                self._staged[producer, counter] = staged

        pending.undo.append(undo)

    def _drop(self, key: tuple[str, int]) -> None:
        staged = self._staged.pop(key, None)
        if staged is None:
            return
        pending = self._broker.commits.pending
        pending.group.unstaged += [record.id for record in staged]
        pending.undo.append(lambda: self._staged.update({key: staged}))
