"""The embedded store.

1. One thread writes, one reads, one copies the write-ahead log into the database; each has its own connection.
2. A commit appends blocks, which is sequential, and changes few small rows. What would touch a page for each topic or
   producer (the index of runs, the producers' counters) waits in memory for the checkpoint; after a crash it is made
   again from the headers of the blocks since then.
3. A block goes when none of its runs is wanted, and only after its checkpoint, since until then it is all that
   remembers its producers' counters.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import orjson

from stafeta.message import Batch
from stafeta.store.blocks import batch_of, runs_of
from stafeta.store.port import (
    Append,
    CursorRecord,
    Group,
    ProducerRecord,
    Snapshot,
    StagedRecord,
    SubscriptionRecord,
    TopicRecord,
)
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.folder import DATABASE, check_version, connect, lock, migrate, told
from stafeta.store.sqlite.pages import unpack
from stafeta.store.sqlite.reader import Reader, load
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.segments import WORTH, Segments
from stafeta.store.sqlite.sweeper import Sweeper, live_segments
from stafeta.store.sqlite.worker import Worker
from stafeta.store.sqlite.writer import Ends, Writer

T = TypeVar("T")

WAL_COPY = 16 << 20  # bytes of write-ahead log after which it is copied in the background
WAL_COPY_IDLE = 1 << 20  # the same, where there is nothing else to do
WAL_LIMIT = 256 << 20  # and after which a commit waits for that


class SqliteStore:
    def __init__(
        self,
        folder: Path,
        *,
        durability: Literal["fsync", "os"] = "fsync",
        checkpoint_rows: int = 100_000,
        segments_from: int = WORTH,
    ) -> None:
        """`segments_from` is how many bytes a commit has at least whose large bodies go into files of their own."""
        self._folder = folder
        self._durability = durability
        self._checkpoint_rows = checkpoint_rows
        self._segments_from = segments_from
        self._recent = RecentRuns()
        self._segments: Segments | None = None
        self._write_thread = Worker("store-writer")
        self._read_thread = Worker("store-reader")
        self._copy_thread = Worker("store-copier")
        self._copying: asyncio.Future[None] | None = None
        self._held: int | None = None
        self._connections: list[sqlite3.Connection] = []

    def _on(self, thread: Worker, call: Callable[[], T]) -> asyncio.Future[T]:
        def work() -> T:
            with told(self._folder):
                return call()

        return thread.do(work)

    # --- opening and closing

    async def open(self) -> Snapshot:
        return await self._on(self._write_thread, self._open)

    def _open(self) -> Snapshot:
        self._held = lock(self._folder)
        try:
            check_version(self._folder)
            writing = self._connect(read_only=False)
            migrate(writing)
            snapshot, meta, ends = self._load(writing)
            reading = self._connect(read_only=True)
            self._copier = self._connect(read_only=False)
        except BaseException:
            self._release()
            raise
        names = {topic.id: topic.name for topic in snapshot.topics}
        self._checkpoint = Checkpoint(writing, self._recent, self._checkpoint_rows)
        self._segments = Segments(self._folder, live_segments(writing), worth=self._segments_from)
        self._writer = Writer(writing, self._recent, self._checkpoint, names, ends, meta, self._segments)
        self._sweeper = Sweeper(writing, self._checkpoint, self._writer, self._segments)
        self._reader = Reader(self._folder, reading, self._recent, names)
        for topic in snapshot.topics:
            if topic.first > 1:
                self._sweeper.firsts[topic.id] = topic.first
        return snapshot

    def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        connection = connect(self._folder, durability=self._durability, read_only=read_only)
        self._connections.append(connection)
        return connection

    def _load(self, connection: sqlite3.Connection) -> tuple[Snapshot, dict[str, int], Ends]:
        meta: dict[str, int] = dict(connection.execute(schema.META).fetchall())
        mark = meta.get("checkpoint", 0)
        topics: dict[int, TopicRecord] = {}
        ends: Ends = {}
        if meta.get("unfinished"):
            connection.execute(schema.DROP_UNFINISHED, (mark,))
        for id_, name, first, next_, present, keeps_last, page in connection.execute(schema.TOPICS):
            last = unpack(id_, page)[-1] if page else None
            end, size, latest = (last.end, last.size, last.time) if last else (0, 0, 0)
            topics[id_] = TopicRecord(id_, name, first, max(next_, end), bool(present), bool(keeps_last))
            ends[id_] = (topics[id_].next, size, latest)
        for id_, header in connection.execute(schema.HEADERS_AFTER, (mark,)):
            runs = runs_of(id_, header)
            self._recent.add(id_, [run for run in runs if run.end > topics[run.topic].first])
            for run in runs:
                ends[run.topic] = (max(ends[run.topic][0], run.end), run.size, run.time)
        meta["block"] = max(mark, connection.execute(schema.LAST_BLOCK).fetchone()[0])
        snapshot = Snapshot(
            topics=[topic._replace(next=ends[topic.id][0]) for topic in topics.values()],
            subscriptions=[
                SubscriptionRecord(id_, client, filter_, start, bool(durable))
                for id_, client, filter_, start, durable in connection.execute(schema.SUBSCRIPTIONS)
            ],
            cursors=[
                (subscription, topic, CursorRecord(floor, _ranges(above)))
                for subscription, topic, floor, above in connection.execute(schema.CURSORS)
            ],
            producers=[ProducerRecord(*row) for row in connection.execute(schema.PRODUCERS)],
            recent=self._since(connection, mark, {id_: topic.name for id_, topic in topics.items()}),
            transactions=connection.execute(schema.DONE).fetchall(),
            staged=[StagedRecord(*row) for row in connection.execute(schema.STAGED)],
            client_id=meta.get("client_id", 0),
            position=meta.get("position", 1),
        )
        return snapshot, meta, ends

    def _since(self, connection: sqlite3.Connection, mark: int, names: Mapping[int, str]) -> Iterator[Append]:
        """What was appended after a block. One block at a time: together they may be more than fits into memory."""
        with told(self._folder):
            for id_, *row in connection.execute(schema.BLOCKS_AFTER, (mark,)):
                block, runs = load(self._folder, id_, *row)
                for run in runs:
                    yield Append(run.topic, batch_of(names[run.topic], block, run))

    async def close(self) -> None:
        if self._held is None:
            return
        if self._copying is not None:
            await asyncio.wait([self._copying])
        await self._on(self._write_thread, self._release)
        for thread in (self._write_thread, self._read_thread, self._copy_thread):
            thread.shutdown()

    def _release(self) -> None:
        if self._segments is not None:
            self._segments.close()
        for connection in reversed(self._connections):
            connection.close()
        self._connections.clear()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    # --- writing

    @property
    def checkpoint_due(self) -> bool:
        return self._checkpoint.ready

    async def commit(self, group: Group) -> None:
        await self._on(self._write_thread, partial(self._commit, group))
        self._copy_if_due()

    def _commit(self, group: Group) -> None:
        self._writer.commit(group)
        for topic in group.topics.values():
            if topic.first > 1:
                self._sweeper.firsts[topic.id] = topic.first
        if self._wal_size() > WAL_LIMIT:
            with suppress(sqlite3.Error):  # the commit is done, whatever becomes of this
                self._copier.execute("PRAGMA wal_checkpoint(RESTART)")

    def _wal_size(self) -> int:
        try:
            return os.stat(self._folder / f"{DATABASE}-wal").st_size
        except FileNotFoundError:
            return 0

    def _copy_if_due(self, limit: int = WAL_COPY) -> None:
        # Off the writer's thread: a checkpoint syncs the database file, and commits must not wait for that.
        if (self._copying is None or self._copying.done()) and self._writer.written > limit:
            self._writer.written = 0
            self._copying = asyncio.ensure_future(self._on(self._copy_thread, self._copy))
            self._copying.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _copy(self) -> None:
        self._copier.execute("PRAGMA wal_checkpoint(PASSIVE)")

    async def sweep(self) -> bool:
        more = await self._on(self._write_thread, self._sweeper.sweep)
        # The file shrinks when what was returned is copied.
        self._copy_if_due(WAL_COPY if more else WAL_COPY_IDLE)
        return more

    # --- reading

    async def read(self, topic: int, start: int, stop: int, size: int) -> list[Batch]:
        return list(await self._on(self._read_thread, partial(self._reader.read, topic, start, stop, size)))

    async def locate(self, topic: int, time: int, first: int) -> int:
        return await self._on(self._read_thread, partial(self._reader.locate, topic, time, first))

    async def measure(self, topic: int, start: int) -> int:
        return await self._on(self._read_thread, partial(self._reader.measure, topic, start))

    async def horizon(self, topic: int, *, before: int | None = None, size: int | None = None) -> int:
        return await self._on(self._read_thread, partial(self._reader.horizon, topic, before, size))


def _ranges(above: str) -> tuple[tuple[int, int], ...]:
    return () if above == "[]" else tuple((a, b) for a, b in orjson.loads(above))
