"""What every store does, and what only the embedded one can."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stafeta.errors import StoreConflict, StoreDamaged, StoreLocked, StoreVersion
from stafeta.message import Batch, RowBatch
from stafeta.store.port import Append, Group, Store, TopicRecord
from stafeta.store.sqlite import schema
from tests.broker.stores import FailingMemory, FailingSqlite, run


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
        connection.execute("UPDATE meta SET value = 1000 WHERE key = 'checkpoint'")
    connection.close()

    async def work() -> None:
        store = FailingSqlite(tmp_path)
        await store.open()
        with pytest.raises(StoreDamaged, match=r"Stored batch 5 .*offsets 5 to 5"):
            await store.read(1, 1, 100, 1 << 20)
        assert payloads(await store.read(1, 6, 100, 1 << 20))[0] == b"6"
        await store.close()

    run(work())


async def filled_and_closed(folder: Path) -> None:
    store = FailingSqlite(folder)
    await filled(store)
    await store.commit(Group(checkpoint=True))
    await store.close()


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
