"""The embedded store.

1. One thread writes, one reads, one copies the write-ahead log into the database; each has its own connection. Two more
   write what is large, before its commit. What is small the event loop's own thread writes where that is quick, and
   the one that writes is idle.
2. A commit appends blocks, which is sequential, and changes few small rows. What would touch a page for each topic or
   producer (the index of runs, the producers' counters) waits in memory for the checkpoint; after a crash it is made
   again from the headers of the blocks since then.
3. A block goes when its topics keep nothing of what its header names, and only after its checkpoint, since until then
   it is all that remembers its producers' counters.
"""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Literal, TypeVar

from stafeta.columns import ColumnBatch
from stafeta.histogram import SECONDS, Histogram
from stafeta.message import Batch
from stafeta.store.port import Append, Group, ReadNext, Snapshot, Span, Usage
from stafeta.store.sqlite.ahead import AheadWriter
from stafeta.store.sqlite.checkpoint import Checkpoint
from stafeta.store.sqlite.continuity import Continuity
from stafeta.store.sqlite.folder import (
    BUSY_WAIT,
    DATABASE,
    check_version,
    connect,
    lock,
    migrate,
    opening,
    sync_log,
    translating_errors,
)
from stafeta.store.sqlite.forgotten import Firsts
from stafeta.store.sqlite.loading import Loading
from stafeta.store.sqlite.reader import Reader, check_block
from stafeta.store.sqlite.recent import RecentRuns
from stafeta.store.sqlite.scanning import Scan
from stafeta.store.sqlite.segments import FOLDER, WORTH, Segments
from stafeta.store.sqlite.sweeper import Sweeper
from stafeta.store.sqlite.task_thread import Worker
from stafeta.store.sqlite.wal import lengthen
from stafeta.store.sqlite.writer import Writer

T = TypeVar("T")

AHEAD_THREADS = 2  # one writes while the other one syncs
WAL_COPY = 16 << 20  # bytes of write-ahead log after which it is copied in the background
WAL_COPY_IDLE = 1 << 20  # the same, where there is nothing else to do
WAL_LIMIT = 256 << 20  # and after which a commit waits for that
RESTART_WAIT = 200  # milliseconds that it waits for those who read
WAL_AHEAD = 1 << 20  # bytes by which it is made longer than it need be
WAL_SMALL = 64 << 10  # bytes of a commit to which that makes a difference

FEW = 4  # appends of a small commit
SMALL = 16 << 10  # and bytes of payload in it
QUICK = 0.001  # seconds that the last small commits took, for the loop to wait for the next itself
FORGET = 0.9  # what a commit leaves of how slow those before it were


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
        self._wal = str(folder / f"{DATABASE}-wal")
        self._wal_size = 0  # after the last commit
        self._wal_limit = WAL_LIMIT  # its size after which a commit waits until it is copied
        self._durability = durability
        self._checkpoint_rows = checkpoint_rows
        self._segments_from = segments_from
        self._recent = RecentRuns()
        self._segments: Segments | None = None
        self._ahead: AheadWriter | None = None
        self.sync_seconds = Histogram(SECONDS)
        self._write_thread = Worker("store-writer")
        self._read_thread = Worker("store-reader")
        self._copy_thread = Worker("store-copier")
        self._copying: asyncio.Future[None] | None = None
        # Of two threads in one connection one waits inside SQLite, and Python's lock with it: all others would stop.
        self._copier_lock = Lock()
        self._slowness = (
            QUICK  # seconds: the longest of the last small commits, each counting less with the next
        )
        self._held: int | None = None
        self._connections: list[sqlite3.Connection] = []

    def _on(self, thread: Worker, call: Callable[[], T]) -> asyncio.Future[T]:
        def work() -> T:
            with translating_errors(self._folder):
                return call()

        return thread.do(work)

    # --- opening and closing

    async def open(self) -> Snapshot:
        return await self._on(self._write_thread, self._open)

    def _open(self) -> Snapshot:
        self._held = lock(self._folder)
        try:
            with opening(self._folder):
                check_version(self._folder, durability=self._durability)
                writing = self._connect(read_only=False)
                migrate(writing)
            if self._durability == "fsync":
                sync_log(self._folder)  # what is found here counts as stored from now on
            loading = Loading(self._folder, writing, self._recent)
            snapshot = loading.load()
            reading = self._connect(read_only=True)
            self._copier = self._connect(read_only=False)
            self._copied = self._version()
        except BaseException:
            self._release()
            raise
        names = {topic.id: topic.name for topic in snapshot.topics}
        meta, ends = loading.meta, loading.ends
        self._skipped = loading.skipped
        self._firsts = Firsts([(topic.id, topic.first) for topic in snapshot.topics], loading.forgotten)
        self._checkpoint = Checkpoint(
            writing, self._recent, self._checkpoint_rows, self._firsts, meta.get("checkpoint", 0)
        )
        self._segments = Segments(self._folder, worth=self._segments_from)
        self._ahead = AheadWriter(
            [
                Segments(self._folder, worth=self._segments_from, beside=self._segments)
                for _ in range(AHEAD_THREADS)
            ]
        )
        self._writer = Writer(
            writing, self._recent, self._checkpoint, names, ends, meta, self._segments, loading.forgotten
        )
        self._writer.sync_seconds = self.sync_seconds
        self._sweeper = Sweeper(
            writing,
            self._checkpoint,
            self._recent,
            self._writer,
            self._segments,
            self._firsts,
            meta.get("looked_at", 0),
            lambda block: check_block(self._folder, writing, block),
            Continuity(dict(self._firsts), {topic: end for topic, (end, *_) in ends.items()}, self._skipped),
            loading.damage.say,
        )
        self._reader = Reader(self._folder, reading, self._recent, names, self._firsts, ends, self._skipped)
        return snapshot

    def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        connection = connect(self._folder, durability=self._durability, read_only=read_only)
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        if self._held is None:
            return
        if self._copying is not None:
            await asyncio.wait([self._copying])
        await self._on(self._write_thread, self._release)
        for thread in (self._write_thread, self._read_thread, self._copy_thread):
            thread.shutdown()

    def _release(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
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

    def write_ahead(self, batch: ColumnBatch, done: Callable[[], None]) -> bool:
        return self._ahead is not None and self._ahead.write(batch, done)

    def commit(self, group: Group) -> Awaitable[None]:
        self._copy_if_due()
        if group.alone and self._is_quick(group):
            return self._commit_here(group)
        return self._on(self._write_thread, partial(self._commit, group))

    def _is_quick(self, group: Group) -> bool:
        """Whether writing it takes about as long as to have another thread do it."""
        return (
            self._slowness < QUICK
            and self._write_thread.idle
            and (self._copying is None or self._copying.done())
            and not self._checkpoint.under_way
            and _is_small(group)
        )

    def _commit_here(self, group: Group) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        with translating_errors(self._folder):
            self._write(group)
        done.set_result(None)
        size = self._wal_length()
        if size > self._wal_limit or (size != self._wal_size and self._durability == "fsync"):
            self._on(self._write_thread, self._look_at_log)
        return done

    def _commit(self, group: Group) -> None:
        self._write(group)
        for id_, start, stop in group.skipped:
            self._skipped[id_] = sorted([*self._skipped.get(id_, ()), (start, stop)])
        for topic in group.topics.values():
            if topic.first > self._firsts.get(topic.id, 0):
                self._firsts[topic.id] = topic.first
                if topic.first > 1:
                    self._sweeper.released.add(topic.id)
        for forgotten in group.forgotten_topics:
            self._firsts.pop(forgotten, None)
        self._look_at_log()

    def _write(self, group: Group) -> None:
        began = perf_counter()
        try:
            self._writer.commit(group)
        finally:
            if _is_small(group):  # also of a disk that fails slowly
                self._slowness = max(perf_counter() - began, FORGET * self._slowness)

    def _wal_length(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except OSError:  # it is asked after a commit, which is done whatever becomes of this
            return 0

    def _look_at_log(self) -> None:
        size = self._wal_length()
        if size > self._wal_limit:
            # Where somebody reads, as a backup does, it grows on: a commit does not wait for that.
            with suppress(sqlite3.Error), self._copier_lock:
                self._copier.execute(f"PRAGMA busy_timeout = {RESTART_WAIT}")
                busy = self._copy_log("RESTART")
                self._copier.execute(f"PRAGMA busy_timeout = {BUSY_WAIT}")
                self._wal_limit = size + WAL_LIMIT if busy else WAL_LIMIT
        elif self._durability == "fsync" and 0 < size - self._wal_size < WAL_SMALL:
            size += lengthen(self._wal, WAL_AHEAD)
        self._wal_size = size

    def _copy_if_due(self, limit: int = WAL_COPY) -> None:
        # Off the writer's thread: a checkpoint syncs the database file, and commits must not wait for that.
        if (self._copying is None or self._copying.done()) and self._writer.written > limit:
            self._writer.written = 0
            self._copying = asyncio.ensure_future(self._on(self._copy_thread, self._copy))
            self._copying.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _copy(self) -> None:
        """Never begins where nothing was committed since the last time. Before 3.51.3 SQLite loses commits where a log
        that is wholly copied is looked at for copying just as a commit begins it anew (its "WAL-reset bug"). After a
        commit it is not wholly copied, and is not begun anew until it is."""
        with self._copier_lock:
            if self._version() != self._copied:
                self._copy_log("PASSIVE")

    def _copy_log(self, how: Literal["PASSIVE", "RESTART"]) -> bool:
        """True where it could not be finished because somebody reads."""
        try:
            busy, *_ = self._copier.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        finally:  # whatever became of it: the next one waits for a commit
            self._copied = self._version()
        return bool(busy)

    def _version(self) -> int:
        """Differs from before where something was committed meanwhile."""
        return int(self._copier.execute("PRAGMA data_version").fetchone()[0])

    async def sweep(self) -> bool:
        more = await self._on(self._write_thread, self._sweeper.sweep)
        # The file shrinks when what was returned is copied.
        self._copy_if_due(WAL_COPY if more else WAL_COPY_IDLE)
        return more

    # --- what it takes

    async def usage(self) -> Usage:
        return await asyncio.to_thread(self._usage)

    def _usage(self) -> Usage:
        return Usage(
            _size(str(self._folder / DATABASE)),
            _size(self._wal),
            _files_in(self._folder / FOLDER),
            shutil.disk_usage(self._folder).free,
        )

    async def ping(self) -> None:
        await self._on(self._write_thread, lambda: None)

    # --- reading

    async def read(self, topic: int, start: int, stop: int, size: int) -> list[Batch]:
        return list(await self._on(self._read_thread, partial(self._reader.read, topic, start, stop, size)))

    def scan(self, spans: Sequence[Span]) -> ReadNext:
        scan = Scan(self._reader, spans)
        return lambda size, overhead: self._on(self._read_thread, partial(scan.read, size, overhead))

    async def verify(self, staged: Sequence[int]) -> None:
        await self._on(self._read_thread, partial(self._reader.verify, staged))

    async def locate(self, topic: int, time: int, first: int) -> int:
        return await self._on(self._read_thread, partial(self._reader.locate, topic, time, first))

    async def measure(self, topic: int, start: int) -> int:
        return await self._on(self._read_thread, partial(self._reader.measure, topic, start))

    async def horizon(self, topic: int, *, before: int | None = None, size: int | None = None) -> int:
        return await self._on(self._read_thread, partial(self._reader.horizon, topic, before, size))


def _is_small(group: Group) -> bool:
    """Whether it only appends, and little."""
    return (
        len(group.appends) <= FEW
        and group.only_appends
        and sum(one.batch.size for one in group.appends if isinstance(one, Append)) <= SMALL
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _files_in(folder: Path) -> int:
    """Bytes of all files; of those that go meanwhile none."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat().st_size
    return total
