"""What is large is on the disk before its commit, which then only says where it lies."""

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from stafeta.broker import Broker
from stafeta.columns import ColumnBatch
from stafeta.errors import StoreFull
from stafeta.store.sqlite import ahead, segments, store, writer
from stafeta.store.sqlite.segments import FOLDER
from tests.broker.stores import FailingSqlite, run
from tests.store.test_segments import LARGE, ROWS, batch, everything, files, opened
from tests.waiting import PATIENCE


def write_ahead(broker: Broker, one: ColumnBatch) -> bool:
    """Whether the store was to write it; when this returns it has tried to."""
    written = threading.Event()
    taken = broker.write_ahead(one, written.set)
    assert not taken or written.wait(PATIENCE)
    return taken


def size(folder: Path) -> int:
    return sum((folder / FOLDER / name).stat().st_size for name in files(folder))


async def crash(broker: Broker) -> None:
    store = broker._store
    assert isinstance(store, FailingSqlite)
    store.crash()


def test_a_commit_writes_nothing_again_that_was_written_ahead(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        for number in range(3):
            one = batch(number)
            assert write_ahead(broker, one)
            before = size(tmp_path)
            assert before > (number + 1) * LARGE
            broker.append("t", one)
            await broker.commit()
            assert size(tmp_path) == before
        await crash(broker)
        again = await opened(tmp_path)
        assert await everything(again) == list(range(3 * ROWS))
        await again.close()

    run(work())


def test_a_small_batch_is_left_to_its_commit(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        assert not write_ahead(broker, batch(0, 5))
        await broker.close()
        assert not write_ahead(broker, batch(0))

    run(work())


def test_batches_that_are_written_ahead_stand_in_order_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COLUMNS_BYTES", 30_000)  # so that a batch makes several blocks

    async def work() -> None:
        broker = await opened(tmp_path)
        small, large, next_, last = batch(0, 5), batch(1), batch(2), batch(3)
        for one in (large, last):
            assert write_ahead(broker, one)
        for one in (small, large, next_, last):
            broker.append("t", one)
        await broker.commit()
        expected = [*range(5), *range(100, 400)]
        assert await everything(broker) == expected
        await crash(broker)
        again = await opened(tmp_path)
        assert await everything(again) == expected
        await again.close()

    run(work())


def test_what_is_known_of_a_batch_already_is_not_stored_twice(tmp_path: Path) -> None:
    """Only the rest of it is new: what was written ahead is the whole, and is left alone."""

    async def work() -> None:
        broker = await opened(tmp_path)
        broker.append("t", batch(0, 40), "", "p", 1)
        again = batch(0)
        assert write_ahead(broker, again)
        broker.append("t", again, "", "p", 1)
        await broker.commit()
        assert await everything(broker) == list(range(ROWS))
        await broker.close()

    run(work())


def test_a_segment_stays_until_what_was_written_ahead_is_committed_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SIZE", 1)  # each is full at once
    monkeypatch.setattr(store, "AHEAD_THREADS", 1)

    async def work() -> None:
        broker = await opened(tmp_path)
        kept, given_up, last = batch(0), batch(1), batch(2)
        for one in (kept, given_up, last):
            assert write_ahead(broker, one)
        await broker.collector.collect()
        await broker.collector.collect()
        assert files(tmp_path) == ["00000001", "00000002", "00000003"]
        del given_up
        del one
        broker.append("t", kept)
        await broker.commit()
        del kept
        await broker.collector.collect()
        assert files(tmp_path) == ["00000001", "00000003"]
        broker.append("t", last)
        await broker.commit()
        assert await everything(broker) == [*range(100), *range(200, 300)]
        await broker.close()

    run(work())


def test_what_cannot_be_written_ahead_its_commit_refuses_or_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.fdatasync, [True]

    def fdatasync(file: int) -> None:
        if full[0] and Path(os.readlink(f"/proc/self/fd/{file}")).parent.name == FOLDER:
            raise OSError(28, "No space left on device")
        real(file)

    async def work() -> None:
        broker = await opened(tmp_path)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        refused = batch(0)
        assert write_ahead(broker, refused)
        assert not refused.ahead
        broker.append("t", refused)
        with pytest.raises(StoreFull):
            await broker.commit()
        assert broker.not_ready() is not None
        late = batch(0)
        assert write_ahead(broker, late)
        full[0] = False
        broker.append("t", late)
        await broker.commit()
        assert await everything(broker) == list(range(ROWS))
        await broker.close()

    run(work())


def test_what_was_written_ahead_takes_little_of_a_share(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        share = broker.share()
        share.size = 3 * LARGE
        for number in range(4):
            one = batch(number)
            assert write_ahead(broker, one)
            share.count(partial(broker.append, "t", one))
            assert not share.spent
        for number in range(4, 7):
            share.count(partial(broker.append, "t", batch(number)))
        assert share.spent
        await broker.commit()
        await broker.close()

    run(work())


def test_one_is_written_while_another_one_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, both = os.fdatasync, threading.Barrier(2)

    def fdatasync(file: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).parent.name == FOLDER:
            both.wait(PATIENCE)
        real(file)

    async def work() -> None:
        broker = await opened(tmp_path)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        monkeypatch.setattr(ahead, "TOGETHER", 1)
        written = threading.Semaphore(0)
        two = [batch(0), batch(1)]
        for one in two:
            assert broker.write_ahead(one, written.release)
        for _ in two:
            assert written.acquire(timeout=2 * PATIENCE)
        assert not both.broken
        assert len(files(tmp_path)) == 2
        for one in two:
            broker.append("t", one)
        await broker.commit()
        await crash(broker)
        again = await opened(tmp_path)
        assert await everything(again) == list(range(2 * ROWS))
        await again.close()

    run(work())


@pytest.mark.parametrize("allowed", [0, 1])
def test_with_fewer_threads_it_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    real = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == "store-ahead":
            if len(started) == allowed:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        real(thread)

    async def work() -> None:
        broker = await opened(tmp_path)
        monkeypatch.setattr(threading.Thread, "start", start)
        for number in range(2):
            one, written = batch(number), threading.Event()
            assert broker.write_ahead(one, written.set) == bool(allowed)
            assert not allowed or written.wait(PATIENCE)
            broker.append("t", one)
            await broker.commit()
        assert await everything(broker) == list(range(2 * ROWS))
        await broker.close()

    run(work())


def test_batches_that_wait_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AHEAD_THREADS", 1)
    real, syncs, may_go_on = os.fdatasync, [], threading.Event()

    def fdatasync(file: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).parent.name == FOLDER:
            syncs.append(file)
            assert may_go_on.wait(PATIENCE)
        real(file)

    async def work() -> None:
        broker = await opened(tmp_path)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        written = threading.Semaphore(0)
        several = [batch(number) for number in range(6)]
        for one in several:
            assert broker.write_ahead(one, written.release)
        may_go_on.set()
        for _ in several:
            assert written.acquire(timeout=PATIENCE)
        assert len(syncs) <= 2
        for one in several:
            broker.append("t", one)
        await broker.commit()
        assert len(syncs) <= 2, "commits need none of their own"
        assert await everything(broker) == list(range(6 * ROWS))
        await broker.close()

    run(work())
