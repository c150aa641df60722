"""What a restored broker gives out, keeps and believes; and backups beside brokers that are held up or killed."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from stafeta.backup import points, restoring, taking
from stafeta.backup.destination import Destination
from stafeta.broker import Broker, Retention
from stafeta.config.options import Limits
from stafeta.errors import InvalidMessage, OutOfSequence, StoreDamaged
from stafeta.message import RowBatch
from stafeta.store.port import Append, Group
from stafeta.store.sqlite import SqliteStore, copying, store
from stafeta.store.sqlite.rebuilding import Resumed, resumed_at
from tests.backup.lives import Interrupting, Life
from tests.broker.stores import FailingSqlite, run
from tests.soundness import assert_sound
from tests.store.test_store import topic


def restored(folder: Path) -> tuple[Path, Resumed]:
    """A folder made of a backup of another, which a broker has open."""
    destination = Destination.of(str(folder / "backups"))
    taking.take(folder / "data", destination)
    new = folder / f"restored-{len(points.names(destination))}"
    return new, restoring.restore(destination, points.find(destination, None), new)


async def texts(broker: Broker, name: str) -> list[bytes]:
    found = broker.topic(name)
    batches = await broker.read(found, found.first, 1 << 20)
    return [payload for batch in batches for payload in batch.payloads]


def test_offsets_positions_and_client_ids_are_new(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path / "data"))
        broker.subscribe("c", "t")
        for number in range(3):
            broker.publish("t", b"%d" % number)
        given = broker.new_client()
        await broker.commit()
        first, _ = restored(tmp_path)
        second, resumed = restored(tmp_path)
        await broker.close()
        offsets, ids = [], []
        for folder in (first, second):
            again = await Broker.open(FailingSqlite(folder))
            offsets.append(again.publish("t", b"new"))
            again.subscribe("c", "new")
            assert again.publish("new", b"x") == offsets[-1]
            ids.append(again.new_client())
            await again.commit()
            assert again.log.visible_position > broker.next_position + (1 << 32)
            assert await texts(again, "t") == [b"0", b"1", b"2", b"new"]
            (line,) = await again.subscription_lines(("", ""), 10, "t")
            assert line.behind == 4
            await again.close()
            assert_sound(folder)
        assert 3 < offsets[0] < offsets[1] == resumed.offset
        assert given < ids[0] < ids[1]

    run(work())


def test_who_is_restored_later_is_beyond_all_that_others_can_have_used() -> None:
    hour = 3_600_000_000
    now = time.time_ns() // 1000
    first = resumed_at(1000, now)
    assert resumed_at(5, now + hour) >= first + 4 * hour  # also of an older point
    assert resumed_at(first + 7, 0) == first + 7 + (1 << 32)  # where the clock is years behind
    assert resumed_at(0, now + 50 * 365 * 24 * hour) < 1 << 53  # JavaScript, too, knows such numbers exactly


def test_retention_and_last_messages_do_not_count_the_gap(tmp_path: Path) -> None:
    def retention(name: str) -> Retention | None:
        return Retention(messages=3) if name == "kept" else None

    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path / "data"), retention=retention)
        for number in range(5):
            broker.publish("kept", b"%d" % number, create=True)
            broker.publish("last", b"%d" % number, create=True, keep_last=True)
        await broker.commit()
        await broker.collector.collect()
        assert await texts(broker, "last") == [b"4"]
        folder, _ = restored(tmp_path)
        await broker.close()
        again = await Broker.open(FailingSqlite(folder), retention=retention)
        await again.collector.collect()
        assert await texts(again, "kept") == [b"2", b"3", b"4"]
        assert await texts(again, "last") == [b"4"]
        for name in ("kept", "last"):
            again.publish(name, b"new")
        await again.commit()
        await again.collector.collect()
        assert await texts(again, "kept") == [b"3", b"4", b"new"]
        assert await texts(again, "last") == [b"new"]
        await again.close()
        assert_sound(folder)

    run(work())


def test_a_producer_that_is_ahead_is_believed_once(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path / "data"))
        broker.subscribe("c", "t")
        for name in ("p", "q"):
            broker.publish_sequence("t", [b"1", b"2"], name, 1)
        await broker.commit()
        folder, resumed = restored(tmp_path)
        await broker.close()
        again = await Broker.open(FailingSqlite(folder), Limits(max_payload=10))
        with pytest.raises(InvalidMessage):
            again.publish_sequence("t", [b"5" * 20], "p", 5)
        with pytest.raises(OutOfSequence) as error:  # what comes behind it in a pipeline
            again.publish_sequence("t", [b"6"], "p", 6)
        assert error.value.expected == 5
        assert again.publish_sequence("t", [b"5"], "p", 5)[0] == resumed.offset
        assert again.publish_sequence("t", [b"5"], "p", 5)[0] == resumed.offset
        with pytest.raises(OutOfSequence):
            again.publish_sequence("t", [b"3"], "unknown", 3)
        await again.commit()
        await again.close()
        later = await Broker.open(FailingSqlite(folder))
        with pytest.raises(OutOfSequence):
            later.publish_sequence("t", [b"9"], "p", 9)
        assert (
            later.publish_sequence("t", [b"9"], "q", 9)[0] == resumed.offset + 1
        )  # which has not come since
        await later.close()
        assert_sound(folder)

    run(work())


def test_what_was_staged_can_be_committed(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path / "data", segments_from=100))
        broker.subscribe("c", "t")
        for part in ("small", "large"):
            await broker.stage("p", 1, part, "t", [(3, part.encode() * (1 if part == "small" else 100))])
        folder, resumed = restored(tmp_path)
        await broker.close()
        again = await Broker.open(FailingSqlite(folder))
        await again.prepare_transaction("p", 1)
        await again.commit_transaction("p", 1, ["small", "large"])
        assert await texts(again, "t") == [b"small", b"large" * 100]
        assert again.topic("t").next == resumed.offset + 2
        await again.close()
        assert_sound(folder)

    run(work())


# --- beside a broker


def test_a_broker_may_be_killed_and_started_while_it_is_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PACK", 500)
    life = Life(tmp_path, large=500)
    run(life.begin())
    for _ in range(5):
        run(life.append([1, 2, 3]))

    def interrupt() -> None:
        life.store.crash()
        run(life.open())
        run(life.append([1, 2, 3]))

    destination = Interrupting(fs.LocalFileSystem(), tmp_path / "backups", interrupt)
    made = taking.take(life.folder, destination)
    life.expected[made.point.name] = {id_: list(held) for id_, held in life.held.items()}
    life.store.crash()
    run(life.check_points())


def test_a_segment_that_is_collected_just_then_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAUSE", 0.0)
    life = Life(tmp_path, large=500)
    run(life.begin())
    run(life.append([1]))
    segment = life.folder / "segments" / "00000001"
    whole = os.open
    opened: list[object] = []

    def open_(path: Any, *rest: Any, **more: Any) -> int:
        if Path(str(path)) == segment and not opened:
            opened.append(path)

            async def collect() -> None:  # between the transaction's beginning and this
                await life.release(1, 2)
                await life.store.commit(Group(checkpoint=True, position=life.position))
                while await life.store.sweep():
                    pass
                life.store._segments.close()  # type: ignore[union-attr]
                await life.store.sweep()

            run(collect())
            assert not segment.exists()
        return whole(path, *rest, **more)

    monkeypatch.setattr(os, "open", open_)
    life.back_up()
    assert opened
    monkeypatch.undo()
    life.store.crash()
    run(life.check_points())


def test_a_segment_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PAUSE", 0.0)
    life = Life(tmp_path, large=500)
    run(life.begin())
    run(life.append([1]))
    (life.folder / "segments" / "00000001").unlink()
    with pytest.raises(StoreDamaged, match="is missing, and messages lie in it"):
        life.back_up()
    assert points.names(life.destination) == []
    life.store.crash()


def test_commits_do_not_wait_for_whoever_reads_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAL_LIMIT", 64 << 10)

    async def work() -> None:
        one = SqliteStore(tmp_path / "data", durability="os")
        await one.open()
        await one.commit(Group(topics={1: topic(1)}))
        with closing(sqlite3.connect(tmp_path / "data" / "stafeta.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM block").fetchone()
            begin = time.monotonic()
            for at in range(1, 31):
                rows = [(at, 0, "", "", 3, None, b"." * 8000)]
                append = Append(1, RowBatch("t1", at, rows))  # type: ignore[arg-type]
                await one.commit(Group(appends=[append], position=at + 1))
            # One that waited for the reader would wait 10 s.
            assert time.monotonic() - begin < 100
        await one.close()

    run(work())
