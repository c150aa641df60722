"""A disk that fails while something is stored: the answer is that nobody knows, and a retry is stored once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stafeta.broker import Broker
from stafeta.errors import EXIT_FATAL, StoreError
from stafeta.store.sqlite import SqliteStore
from tests.broker.stores import run
from tests.faults.vfs import listening_vfs
from tests.soundness import assert_sound


class FailingDisk:
    """Fails one sync when told to."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.fails = False

    def opened(self, path: str, *, made: bool) -> int | None:
        return 1 if path.startswith(self._folder) else None

    def wrote(self, file: int, offset: int, data: bytes) -> None: ...

    def truncated(self, file: int, size: int) -> None: ...

    def syncing(self, file: int) -> Callable[[], None]:
        if self.fails:
            self.fails = False
            raise OSError
        return lambda: None

    def folder_synced(self, path: str) -> None: ...

    def removed(self, path: str) -> None: ...


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    vfs = listening_vfs()
    if vfs is None:
        pytest.skip("SQLite is part of Python's own module here, and cannot be listened to")
    failing = FailingDisk(tmp_path)
    with vfs.listened(failing):
        yield failing


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_sync_that_failed_a_retry_is_stored_once(
    tmp_path: Path, disk: FailingDisk, killed: bool
) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path)
        broker = await Broker.open(store)
        broker.subscribe("one", "t")
        broker.publish_sequence("t", [b"1"], "p", 1)
        await broker.commit()
        disk.fails = True
        broker.publish_sequence("t", [b"2"], "p", 2)
        with pytest.raises(StoreError, match="Whether this was stored is not known; send it again"):
            await broker.commit()
        assert not disk.fails, "it has failed"
        if killed:  # what was written may be found now, or not
            store._release()
            broker = await Broker.open(SqliteStore(tmp_path))
        broker.publish_sequence("t", [b"2"], "p", 2)
        broker.publish_sequence("t", [b"3"], "p", 3)
        await broker.commit()
        await broker.close()
        assert_sound(tmp_path)
        broker = await Broker.open(SqliteStore(tmp_path))
        found = await broker.read(broker.topic("t"), 1, 1 << 20)
        assert [payload for batch in found for payload in batch.payloads] == [b"1", b"2", b"3"]
        await broker.close()

    run(work())


def test_what_was_stored_and_cannot_be_shown_ends_the_broker(tmp_path: Path) -> None:
    """In a process of its own, since it ends at once; what was stored is there."""
    child = os.fork()
    if child == 0:
        try:
            run(_fail_after_a_commit(tmp_path))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == EXIT_FATAL

    async def work() -> None:
        broker = await Broker.open(SqliteStore(tmp_path))
        found = await broker.read(broker.topic("t"), 1, 1 << 20)
        assert [payload for batch in found for payload in batch.payloads] == [b"1"]
        await broker.close()

    run(work())
    assert_sound(tmp_path)


async def _fail_after_a_commit(folder: Path) -> None:
    broker = await Broker.open(SqliteStore(folder))
    broker.subscribe("one", "t")
    await broker.commit()

    def fail(*_: object) -> None:
        raise ValueError("memory and disk part")

    broker.commits._committed = fail
    broker.publish("t", b"1")
    await broker.commit()
