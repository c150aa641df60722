"""A small commit is carried out by the event loop's own thread, where that is as quick as to ask another."""

import asyncio
import threading
from pathlib import Path

import pytest

from stafeta.errors import StoreConflict
from stafeta.store.port import Append, Group
from stafeta.store.sqlite import SqliteStore, store
from stafeta.store.sqlite.writer import Writer
from tests.broker.stores import run
from tests.store.test_store import batch, payloads, topic


class Commits:
    """Which thread carried out the last commit, and how long it is to seem to have taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by = ""
        self.seconds = 0.0
        self.allowed = threading.Event()
        self.allowed.set()
        self._now = 0.0
        commit = Writer.commit

        def recorded(writer: Writer, group: Group) -> None:
            self.by = threading.current_thread().name
            self.allowed.wait(10)
            self._now += self.seconds
            commit(writer, group)

        monkeypatch.setattr(Writer, "commit", recorded)
        monkeypatch.setattr(store, "perf_counter", lambda: self._now)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


HERE = threading.main_thread().name
THERE = "store-writer"


class Folder:
    """A store with one topic."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path, durability="os")
        self.next = 1

    async def open(self) -> None:
        await self.store.open()
        await self.store.commit(Group(topics={1: topic(1)}))
        await self.append(1)  # by the thread: how quick it is nobody knows yet
        await self.append(1)

    def append(self, *lengths: int, alone: bool = True) -> "asyncio.Future[None]":
        group = Group(position=self.next + len(lengths), alone=alone)
        for length in lengths:
            group.appends.append(batch(1, self.next, b"x" * length, position=self.next))
            self.next += 1
        return asyncio.ensure_future(self.store.commit(group))


def test_a_small_commit_is_done_at_once(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        assert folder.append(100).done()
        assert commits.by == HERE
        assert payloads(await folder.store.read(1, 3, 4, 1000)) == [b"x" * 100]
        await folder.store.close()

    run(work())


@pytest.mark.parametrize("lengths", [[20_000], [1] * 10])
def test_what_is_large_or_much_is_left_to_the_other_thread(
    tmp_path: Path, commits: Commits, lengths: list[int]
) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        await folder.append(*lengths)
        assert commits.by == THERE
        await folder.store.close()

    run(work())


def test_so_is_what_others_wait_beside(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        await folder.append(1, alone=False)
        assert commits.by == THERE
        await folder.store.close()

    run(work())


def test_nothing_overtakes_what_the_other_thread_has(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        commits.allowed.clear()
        first = folder.append(20_000)
        second = folder.append(1)
        commits.allowed.set()
        await asyncio.gather(first, second)
        assert commits.by == THERE
        read = await folder.store.read(1, 3, 5, 1 << 20)
        assert [len(payload) for payload in payloads(read)] == [20_000, 1]
        await folder.store.close()

    run(work())


def test_the_loop_waits_for_no_disk_that_is_slow(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        commits.seconds = 1.0
        assert folder.append(1).done(), "nobody can know before that it is slow"
        await folder.append(1)
        assert commits.by == THERE
        commits.seconds = 0.0
        for _ in range(100):
            await folder.append(1)
        assert commits.by == HERE, "it has been quick again for a while"
        await folder.store.close()

    run(work())


def test_nor_for_one_that_fails_slowly(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        commits.seconds = 1.0
        with pytest.raises(StoreConflict):
            folder.store.commit(Group(appends=[Append(1, batch(1, 7, b"x").batch)], alone=True))
        assert commits.by == HERE, "nobody can know before"
        await folder.append(1)
        assert commits.by == THERE
        await folder.store.close()

    run(work())


def test_the_log_is_made_longer_all_the_same(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        folder.store._durability = "fsync"
        await folder.open()
        for _ in range(50):
            await folder.append(10_000)
        await folder.store.ping()
        assert (tmp_path / "stafeta.db-wal").stat().st_size % store.WAL_AHEAD
        written = folder.store._wal_size
        await folder.append(100)
        assert (tmp_path / "stafeta.db-wal").stat().st_size == written, "it has room for the next"
        await folder.store.close()

    run(work())


def test_what_cannot_be_stored_is_raised_at_once(tmp_path: Path, commits: Commits) -> None:
    async def work() -> None:
        folder = Folder(tmp_path)
        await folder.open()
        await folder.append(1)
        with pytest.raises(StoreConflict):
            folder.store.commit(Group(appends=[Append(1, batch(1, 7, b"x").batch)], alone=True))
        assert commits.by == HERE
        await folder.append(1)
        assert len(payloads(await folder.store.read(1, 1, 5, 1000))) == 4
        await folder.store.close()

    run(work())
