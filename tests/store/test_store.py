"""What every store does, and what only the embedded one can."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stafeta.errors import StoreConflict, StoreDamaged, StoreLocked, StoreVersion
from stafeta.message import Batch, RowBatch
from stafeta.store.port import Append, CommitRecord, Group, Store, TopicRecord
from stafeta.store.sqlite import schema
from stafeta.store.sqlite.seals import seal
from tests.broker.stores import FailingMemory, FailingSqlite, run
from tests.soundness import assert_sound


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FailingMemory | FailingSqlite:
    return FailingMemory() if request.param == "memory" else FailingSqlite(tmp_path)


def topic(id_: int, *, first: int = 1, next_: int = 1) -> TopicRecord:
    return TopicRecord(id_, f"t{id_}", first, next_, True, False)


def batch(id_: int, base: int, *payloads: bytes, position: int = 1, time: int = 0) -> Append:
    rows = [(position + at, time, "p", "", 3, None, payload) for at, payload in enumerate(payloads)]
    return Append(id_, RowBatch(f"t{id_}", base, rows))  # type: ignore[arg-type]


def payloads(batches: list[Batch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.payloads]


async def filled(store: Store, count: int = 100, size: int = 1) -> None:
    await store.open()
    await store.commit(Group(topics={1: topic(1)}))
    for at in range(1, count + 1):
        await store.commit(
            Group(appends=[batch(1, at, b"%d" % at * size, position=at, time=at * 1000)], position=at + 1)
        )


def test_reading_from_anywhere_has_no_gaps(store: FailingMemory | FailingSqlite) -> None:
    async def work() -> None:
        await filled(store)
        for start, stop in [(1, 101), (50, 60), (100, 101), (7, 8)]:
            read = await store.read(1, start, stop, 1 << 20)
            assert payloads(read) == [b"%d" % at for at in range(start, stop)]
        assert len(payloads(await store.read(1, 1, 101, 1))) == 1, (
            "at least one message, however small the size"
        )
        assert await store.read(1, 101, 200, 100) == []
        assert await store.read(2, 1, 200, 100) == []
        await store.close()

    run(work())


def test_an_append_at_another_offset_is_a_conflict_and_changes_nothing(
    store: FailingMemory | FailingSqlite,
) -> None:
    async def work() -> None:
        await filled(store, 10)
        for base in (11, 13):
            with pytest.raises(StoreConflict, match="ends at offset 12"):
                await store.commit(Group(appends=[batch(1, 11, b"a"), batch(1, base, b"b")], client_id=5))
        assert len(payloads(await store.read(1, 1, 100, 1 << 20))) == 10
        await store.close()

    run(work())


def test_retention_finds_where_to_cut(store: FailingMemory | FailingSqlite) -> None:
    async def work() -> None:
        await filled(store, 50, size=10)
        assert await store.horizon(1, before=20_500) == 21
        assert await store.horizon(1, before=0) == 1
        assert await store.horizon(1, before=10**9) == 51
        kept = await store.horizon(1, size=100)
        assert 45 <= kept <= 47, "the last five messages are 100 bytes"
        assert await store.horizon(1, size=10**6) == 1
        await store.close()

    run(work())


def test_what_is_released_is_gone_and_the_rest_stays(store: FailingMemory | FailingSqlite) -> None:
    async def work() -> None:
        await filled(store)
        await store.commit(Group(topics={1: topic(1, first=60, next_=101)}))
        while await store.sweep():
            pass
        assert payloads(await store.read(1, 60, 101, 1 << 20)) == [b"%d" % at for at in range(60, 101)]
        await store.close()

    run(work())


def reopened(folder: Path, **options: int) -> list[bytes]:
    async def work() -> list[bytes]:
        store = FailingSqlite(folder, **options)
        snapshot = await store.open()
        (known,) = snapshot.topics
        read = await store.read(1, known.first, known.next, 1 << 20)
        await store.close()
        return payloads(read)

    return run(work())


@pytest.mark.parametrize("rows", [3, 7, 50, 1000])
def test_a_crash_at_any_stage_of_a_checkpoint_loses_nothing(tmp_path: Path, rows: int) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path, checkpoint_rows=rows)
        await filled(store, 200)
        for at in range(201, 230):
            await store.commit(Group(checkpoint=store.checkpoint_due, appends=[batch(1, at, b"%d" % at)]))
        store.crash()

    run(work())
    for _ in range(2):
        assert reopened(tmp_path, checkpoint_rows=rows) == [b"%d" % at for at in range(1, 230)]


def test_space_is_given_back(tmp_path: Path) -> None:
    database = tmp_path / "stafeta.db"

    async def work() -> tuple[int, int]:
        store = FailingSqlite(tmp_path)
        await filled(store, 300, size=20_000)
        await asyncio.to_thread(store._copy)
        full = database.stat().st_size
        await store.commit(Group(checkpoint=True, topics={1: topic(1, first=301, next_=301)}))
        while await store.sweep():
            pass
        await store.commit(Group(checkpoint=True))
        while await store.sweep():
            pass
        await store.close()
        return full, database.stat().st_size

    full, rest = run(work())
    assert full > 10_000_000
    assert rest < full / 3, f"{full} bytes were used and {rest} still are"


def test_a_damaged_batch_is_named_and_the_others_can_be_read(tmp_path: Path) -> None:
    run(filled_and_closed(tmp_path))
    with sqlite3.connect(tmp_path / "stafeta.db") as connection:
        connection.execute("UPDATE block SET body = zeroblob(length(body)) WHERE id = 5")
    connection.close()

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        await store.open()
        assert payloads(await store.read(1, 1, 100, 1 << 20)) == [b"1", b"2", b"3", b"4"]
        with pytest.raises(
            StoreDamaged, match=r"message 5 of 't1' cannot be read: Stored batch 5 is damaged"
        ) as told:
            await store.read(1, 5, 100, 1 << 20)
        assert (told.value.topic, told.value.start, told.value.stop) == ("t1", 5, 6)
        assert payloads(await store.read(1, 6, 100, 1 << 20))[0] == b"6"
        await store.commit(Group(skipped=[(1, 5, 6)]))
        assert payloads(await store.read(1, 1, 8, 1 << 20)) == [b"1", b"2", b"3", b"4", b"6", b"7"]
        await store.close()
        snapshot = await (again := FailingSqlite(tmp_path)).open()
        assert list(snapshot.skipped) == [(1, 5, 6)]
        assert payloads(await again.read(1, 5, 7, 1 << 20)) == [b"6"]
        await again.close()

    run(work())


# The third of six numbers of the first run is its block: 17 becomes 19, and the checksum one for that.
ELSEWHERE = """
    UPDATE page SET runs = CAST(substr(runs, 1, 16) || x'13' || substr(runs, 18) AS BLOB) WHERE base = 17;
    UPDATE page SET sum = seal('page', topic, base, end, last_block, runs) WHERE base = 17
"""


async def filled_and_closed(folder: Path, checkpoint_rows: int = 20) -> None:
    store = FailingSqlite(folder, checkpoint_rows=checkpoint_rows)
    await filled(store)
    await store.commit(Group(checkpoint=True))
    await store.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "DELETE FROM page WHERE base = 17",
            r"messages 17 to 32 of 't1' cannot be read: the store's index does not have them",
        ),
        (
            "DELETE FROM block WHERE id = 20",
            r"message 20 of 't1' cannot be read: stored batch 20 is missing",
        ),
        (
            ELSEWHERE,
            r"message 17 of 't1' cannot be read: stored batch 19 does not have them, as the store's index says",
        ),
        (
            "UPDATE page SET runs = zeroblob(length(runs)) WHERE base = 17",
            r"messages 17 to 32 of 't1' cannot be read: the store's index does not have them",
        ),
    ],
)
def test_an_index_that_is_damaged_is_told_and_nothing_is_passed_over(
    tmp_path: Path, change: str, told: str
) -> None:
    run(filled_and_closed(tmp_path, checkpoint_rows=1000))
    with sqlite3.connect(tmp_path / "stafeta.db") as connection:
        connection.create_function("seal", -1, seal)
        for statement in change.split(";"):
            assert connection.execute(statement).rowcount == 1
    connection.close()

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        await store.open()
        whole = await store.read(1, 1, 101, 1 << 20)
        with pytest.raises(StoreDamaged, match=told):
            await store.read(1, whole[-1].end, 101, 1 << 20)
        assert len(payloads(await store.read(1, 1, 17, 1 << 20))) == 16
        assert payloads(await store.read(1, 40, 97, 1 << 20)) == [b"%d" % at for at in range(40, 97)]
        await store.close()

    run(work())


def test_two_brokers_cannot_open_one_folder(tmp_path: Path) -> None:
    async def work() -> None:
        first, second = FailingSqlite(tmp_path), FailingSqlite(tmp_path)
        await first.open()
        with pytest.raises(StoreLocked, match="in use by another broker"):
            await second.open()
        await first.close()
        await second.open()
        await second.close()

    run(work())


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    run(filled_and_closed(tmp_path))
    with sqlite3.connect(tmp_path / "stafeta.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreVersion, match="newer Stafeta"):
        reopened(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "stafeta.db") as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StoreVersion, match="another program"):
        reopened(tmp_path)


def test_an_older_format_is_brought_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(filled_and_closed(tmp_path))
    newer = [*schema.MIGRATIONS, "ALTER TABLE topic ADD COLUMN colour TEXT;\nCREATE TABLE later (x);"]
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    assert len(reopened(tmp_path)) == 100
    connection = sqlite3.connect(tmp_path / "stafeta.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (len(newer),)
    assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
    connection.close()


def test_a_folder_without_attempts_runs_and_labels_is_brought_forward(tmp_path: Path) -> None:
    run(filled_and_closed(tmp_path))
    with closing(sqlite3.connect(tmp_path / "stafeta.db")) as connection:
        connection.executescript(
            "DROP TABLE begun; DROP TABLE run; DROP TABLE committed; DROP TABLE kept; PRAGMA user_version = 4;"
        )
    assert len(reopened(tmp_path)) == 100

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        await store.open()
        kept: dict[tuple[str, int], CommitRecord | None] = {("p", 7): CommitRecord("label", 5)}
        await store.commit(Group(begun={"p": 7}, run=(101, "ab"), committed=kept))
        await store.close()
        snapshot = await store.open()
        assert (list(snapshot.begun), list(snapshot.runs)) == ([("p", 7)], [(101, "ab")])
        assert list(snapshot.committed) == [("p", 7, "label", 5)]
        await store.close()

    run(work())
    assert_sound(tmp_path)


def test_a_migration_that_fails_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stafeta.errors import StoreError

    run(filled_and_closed(tmp_path))
    with monkeypatch.context() as context:
        context.setattr(
            schema, "MIGRATIONS", [*schema.MIGRATIONS, "CREATE TABLE later (x);\nSELECT nonsense;"]
        )
        with pytest.raises(StoreError, match="nonsense"):
            reopened(tmp_path)
    assert len(reopened(tmp_path)) == 100


_FIRST_START = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN IMMEDIATE")
database.execute("CREATE TABLE meta (key TEXT)")
database.executemany("INSERT INTO meta VALUES (?)", [("x" * 1000,)] * 1000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_whose_first_start_was_killed_can_be_opened(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FIRST_START, tmp_path / "stafeta.db"], check=False)
    assert (tmp_path / "stafeta.db-journal").stat().st_size > 0

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        await filled(store, 10)
        await store.close()

    run(work())
    assert len(reopened(tmp_path)) == 10


def test_folders_are_synced_up_to_one_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    run(filled_and_closed(tmp_path / "a" / "b"))
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]
