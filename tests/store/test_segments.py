"""Large bodies lie in files beside the database, and are as safe there as in it."""

import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from stafeta.broker import Broker
from stafeta.columns import ColumnBatch
from stafeta.doors.flight.decode_batches import take
from stafeta.errors import StoreDamaged, StoreError, StoreFull
from stafeta.message import Batch
from stafeta.store.sqlite import SqliteStore, segments
from stafeta.store.sqlite.segments import FOLDER
from tests.broker.stores import FailingSqlite, run
from tests.faults.test_disk import small_disk

__all__ = ["small_disk"]

ROWS = 100
LARGE = ROWS * 1000  # bytes of payload in a batch


def batch(number: int, rows: int = ROWS) -> ColumnBatch:
    payloads = [b"%06d" % (number * ROWS + row) + bytes(994) for row in range(rows)]
    return take(pa.record_batch({"payload": pa.array(payloads)}), "t", 1, 1 << 30)


def numbers(batches: list[Batch]) -> list[int]:
    return [int(payload[:6]) for batch in batches for payload in batch.payloads]


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / FOLDER)) if (folder / FOLDER).exists() else []


async def opened(folder: Path) -> Broker:
    broker = await Broker.open(FailingSqlite(folder, segments_from=LARGE), tail=0)
    broker.subscribe("c", "t")
    await broker.commit()
    return broker


async def everything(broker: Broker) -> list[int]:
    topic = broker.topic("t")
    found: list[Batch] = []
    while not found or found[-1].end < topic.visible:
        found += await broker.read(topic, found[-1].end if found else topic.first, 1 << 20)
    return numbers(found)


async def put(broker: Broker, first: int, last: int) -> None:
    for number in range(first, last):
        broker.append("t", batch(number))
        await broker.commit()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        await put(broker, 0, 3)
        (tmp_path / FOLDER / "00000001").unlink()
        with pytest.raises(
            StoreDamaged, match=r"messages 1 to 100 of 't' .*cannot be read from segment 1 \("
        ):
            await everything(broker)
        await broker.close()

    run(work())


def test_a_byte_that_has_changed_is_found(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        await put(broker, 0, 3)
        with (tmp_path / FOLDER / "00000001").open("r+b") as file:
            file.seek(LARGE // 2)
            file.write(b"!")
        with pytest.raises(
            StoreDamaged, match=r"messages 1 to 100 of 't' cannot be read: Stored batch 1 is damaged"
        ):
            await everything(broker)
        await broker.close()

    run(work())


def test_a_disk_that_fills_up_within_a_large_body_takes_none_of_it(small_disk: Path) -> None:
    async def work() -> None:
        folder = small_disk / "data"
        broker = await opened(folder)
        stored = 0
        with suppress(StoreFull):
            while stored < 1000:
                await put(broker, stored, stored + 1)
                stored += 1
        assert 20 < stored < 200
        assert await everything(broker) == list(range(stored * ROWS))
        size = sum((folder / FOLDER / name).stat().st_size for name in files(folder))
        assert size < (stored + 1) * LARGE, "what was begun takes no room"
        await broker.close()
        again = await opened(folder)
        assert await everything(again) == list(range(stored * ROWS))
        await again.close()

    run(work())


def test_large_bodies_are_in_files_and_outlive_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        await put(broker, 0, 3)
        broker.append("t", batch(3, 5))  # small: in the database
        await broker.commit()
        size = sum((tmp_path / FOLDER / name).stat().st_size for name in files(tmp_path))
        assert 3 * LARGE < size < 3 * LARGE * 1.1
        assert (tmp_path / "stafeta.db-wal").stat().st_size < 2 * LARGE
        store = broker._store
        assert isinstance(store, FailingSqlite)
        store.crash()
        again = await opened(tmp_path)
        await put(again, 4, 6)
        assert await everything(again) == [*range(305), *range(400, 600)]
        assert len(files(tmp_path)) == 2, "what may be unfinished is not written to again"
        await again.close()

    run(work())


def test_what_an_unfinished_commit_left_behind_goes_with_the_first_collection(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        await put(broker, 0, 1)
        await broker.close()
        (tmp_path / FOLDER / "00000002").write_bytes(b"half a body")
        again = await opened(tmp_path)
        assert files(tmp_path) == ["00000001", "00000002"], "nothing is deleted at a start"
        await again.collector.collect()
        assert files(tmp_path) == ["00000001"]
        assert await everything(again) == list(range(100))
        await again.close()

    run(work())


def test_a_file_goes_when_nobody_waits_for_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SIZE", 3 * LARGE)

    async def work() -> None:
        broker = await opened(tmp_path)
        await put(broker, 0, 12)
        assert len(files(tmp_path)) == 4
        subscription, topic = broker.subscription("c", "t"), broker.topic("t")
        broker.ack(subscription, topic, 1, 7 * ROWS + 1)
        await broker.commit()
        await broker.collector.collect()
        await broker.collector.collect()
        assert files(tmp_path) == ["00000003", "00000004"]
        assert await everything(broker) == list(range(700, 1200))
        broker.ack(subscription, topic, 1, topic.visible)
        await broker.commit()
        await broker.collector.collect()
        await broker.collector.collect()
        assert files(tmp_path) == ["00000004"], "the one that is written to stays"
        await broker.close()

    run(work())


def test_what_is_staged_is_not_written_again_when_it_is_committed(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await opened(tmp_path)
        staging = broker.staging
        for part in ("a", "b", "dropped"):
            await staging.stage_batch("query", 1, part, "t", batch(ord(part[0]) - ord("a")))
        await staging.stage_batch("query", 2, "later", "t", batch(9))
        size = (tmp_path / FOLDER / "00000001").stat().st_size
        assert size > 4 * LARGE
        await staging.commit("query", 1, ["a", "b"])
        assert (tmp_path / FOLDER / "00000001").stat().st_size == size
        store = broker._store
        assert isinstance(store, FailingSqlite)
        store.crash()
        again = await opened(tmp_path)
        assert await everything(again) == list(range(200))
        await again.staging.commit("query", 2)
        assert await everything(again) == [*range(200), *range(900, 1000)]
        await again.close()

    run(work())


def test_ordinary_messages_make_no_files(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(SqliteStore(tmp_path, durability="os"))
        broker.subscribe("c", "t")
        for number in range(1000):
            broker.publish("t", b"%d" % number)
        await broker.commit()
        assert files(tmp_path) == []
        await broker.close()

    run(work())


def test_after_a_folder_could_not_be_synced_the_next_bulk_is_synced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def fsync(file: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        real(file)

    async def work() -> None:
        broker = await opened(tmp_path)
        monkeypatch.setattr(os, "fsync", fsync)
        broker.append("t", batch(0))
        with pytest.raises(StoreError):
            await broker.commit()
        await put(broker, 0, 1)
        assert len(calls) == 3, "the folder of segments and the one above it"
        assert await everything(broker) == list(range(ROWS))
        await broker.close()

    run(work())


def test_a_segment_goes_after_the_commit_that_lets_go_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where commits do not wait for the disk: `FailingSqlite` is one of those."""
    done: list[str] = []
    sync, unlink = os.fdatasync, Path.unlink

    def fdatasync(file: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        sync(file)

    def remove(path: Path, missing_ok: bool = False) -> None:
        done.append(f"unlink {path.name}")
        unlink(path, missing_ok)

    async def work() -> None:
        monkeypatch.setattr(segments, "SIZE", 1)
        broker = await opened(tmp_path)
        await put(broker, 0, 2)
        broker.unsubscribe("c", "t")
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        monkeypatch.setattr(Path, "unlink", remove)
        broker.commits.checkpoint_wanted = True
        await broker.collector.collect()
        await broker.commit()
        await broker.collector.collect()
        await broker.close()

    run(work())
    first = next(at for at, what in enumerate(done) if what.startswith("unlink"))
    assert done[first - 1] == "stafeta.db-wal"
