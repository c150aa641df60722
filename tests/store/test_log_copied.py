"""The write-ahead log is copied into the database while commits go on: no commit is lost, whenever that happens.

Before 3.51.3 SQLite loses some where copying begins with a log that is wholly copied, and a commit begins it anew.
"""

import threading
from functools import partial
from pathlib import Path
from random import Random

import pytest

from stafeta.store.port import Append, Group, Promotion
from stafeta.store.sqlite import SqliteStore, store
from tests.broker.stores import run
from tests.soundness import assert_sound
from tests.store.test_store import batch, payloads, topic

COMMITS = 4000


def group(at: int, payload: bytes) -> Group:
    appends: list[Append | Promotion] = [batch(1, at, payload, position=at)]
    return Group(appends=appends, position=at + 1)


async def everything(opened: SqliteStore, first: int, stop: int) -> list[bytes]:
    found: list[bytes] = []
    while first + len(found) < stop:
        found += payloads(await opened.read(1, first + len(found), stop, 1 << 24))
    return found


def test_no_commit_is_lost_while_the_log_is_copied_all_the_time(tmp_path: Path) -> None:
    random = Random(1)
    published = [random.randbytes(random.choice((10, 10, 10, 9000))) for _ in range(COMMITS)]

    over = threading.Event()

    def copy_on(opened: SqliteStore) -> None:
        while not over.is_set():
            opened._copy()

    def commit_on(opened: SqliteStore) -> None:
        for at, payload in enumerate(published, 1):
            opened._commit(group(at, payload))

    async def work() -> None:
        opened = SqliteStore(tmp_path / "data", durability="os", checkpoint_rows=20)
        await opened.open()
        await opened.commit(Group(topics={1: topic(1)}))
        copying = opened._on(opened._copy_thread, partial(copy_on, opened))
        await opened._on(opened._write_thread, partial(commit_on, opened))
        over.set()
        await copying
        await opened.close()
        opened = SqliteStore(tmp_path / "data", durability="os")
        (known,) = (await opened.open()).topics
        assert known.next == COMMITS + 1
        assert await everything(opened, 1, known.next) == published
        await opened.close()

    try:
        run(work())
    finally:
        over.set()
    assert_sound(tmp_path / "data")


def test_a_log_that_is_wholly_copied_is_not_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAL_LIMIT", 100_000)

    async def work() -> None:
        opened = SqliteStore(tmp_path / "data", durability="os")
        await opened.open()
        copied: list[str] = []
        opened._copier.set_trace_callback(
            lambda statement: copied.append(statement) if "checkpoint" in statement else None
        )

        async def copy() -> int:
            await opened._on(opened._copy_thread, opened._copy)
            return len(copied)

        assert await copy() == 0  # nothing was committed since it was opened
        await opened.commit(Group(topics={1: topic(1)}))
        assert await copy() == 1
        assert await copy() == 1
        await opened.commit(group(1, b"small"))
        assert await copy() == 2
        await opened.commit(group(2, bytes(200_000)))  # so large that whoever commits has it copied
        assert len(copied) == 3
        assert await copy() == 3
        await opened.commit(group(3, b"small"))
        assert await copy() == 4
        await opened.close()

    run(work())
