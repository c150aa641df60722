"""A write-ahead log in which bits were flipped after a kill: nothing is forgotten without a word."""

import random
import shutil
from pathlib import Path
from typing import Literal

import pytest

from stafeta.errors import StoreDamaged
from stafeta.store.port import Append, Group, Promotion
from stafeta.store.sqlite import SqliteStore
from stafeta.store.sqlite.wal import WriteAheadLog
from tests.broker.stores import FailingSqlite, run
from tests.store.test_store import batch, payloads, topic

COUNT = 30
PAGE = 4096
HEADER, FRAME = 32, 24


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that was killed, with all it stored in its log."""
    folder = tmp_path_factory.mktemp("killed") / "data"
    copy = folder.with_name("copy")

    async def work() -> None:
        store = FailingSqlite(folder, checkpoint_rows=20)
        await store.open()
        await store.commit(Group(topics={1: topic(1)}))
        for at in range(1, COUNT + 1):
            appends: list[Append | Promotion] = [batch(1, at, b"%d" % at * 50, position=at)]
            await store.commit(Group(checkpoint=store.checkpoint_due, appends=appends, position=at + 1))
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm"))
        await store.close()

    run(work())
    return copy


def stored(folder: Path, durability: Literal["fsync", "os"] = "fsync") -> list[bytes]:
    async def work() -> list[bytes]:
        store = SqliteStore(folder, durability=durability)
        snapshot = await store.open()
        try:
            (known,) = snapshot.topics
            return payloads(await store.read(1, 1, known.next, 1 << 20))
        finally:
            await store.close()

    return run(work())


EVERYTHING = [b"%d" % at * 50 for at in range(1, COUNT + 1)]


def flipped(killed: Path, folder: Path, *bits: int) -> Path:
    shutil.copytree(killed, folder)
    path = folder / "stafeta.db-wal"
    data = bytearray(path.read_bytes())
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return folder


def places(killed: Path) -> dict[str, range]:
    """The bits of each part of the log."""
    frames = len(list(WriteAheadLog(killed / "stafeta.db-wal").frames()))
    assert frames > 50
    found = {"header": range(HEADER * 8)}
    for name, number in (("first", 1), ("middle", frames // 2), ("last", frames)):
        start = HEADER + (number - 1) * (FRAME + PAGE)
        found[f"{name} frame's header"] = range(start * 8, (start + FRAME) * 8)
        found[f"{name} frame's page"] = range((start + FRAME) * 8, (start + FRAME + PAGE) * 8)
    return found


def test_what_a_kill_leaves_is_all_there(killed: Path, tmp_path: Path) -> None:
    assert stored(flipped(killed, tmp_path / "data")) == EVERYTHING
    assert not (tmp_path / "data" / "quarantine").exists()


@pytest.mark.parametrize(
    "place",
    [
        "header",
        *(f"{name} frame's {part}" for name in ("first", "middle", "last") for part in ("header", "page")),
    ],
)
def test_one_flipped_bit_is_put_right_or_told(
    killed: Path, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Put right wherever it alone explains what is found; that is not so of some high bits."""
    chance = random.Random(place)
    bits = places(killed)[place]
    mended = 0
    for number in range(20):
        caplog.clear()
        folder = flipped(killed, tmp_path / str(number), bits[chance.randrange(len(bits))])
        before = (folder / "stafeta.db-wal").read_bytes()
        try:
            found = stored(folder)
        except StoreDamaged:
            assert (folder / "stafeta.db-wal").read_bytes() == before
            continue
        assert (folder / "quarantine" / "stafeta.db-wal.1").read_bytes() == before
        if found != EVERYTHING:
            assert found == EVERYTHING[:-1]
            assert "the last commit" in caplog.text
            continue
        assert "had 1 flipped bits, which are right again" in caplog.text
        assert stored(folder) == EVERYTHING
        mended += 1
    assert mended >= 10


def test_what_cannot_be_put_right_is_damage_and_nothing_is_changed(killed: Path, tmp_path: Path) -> None:
    bits = places(killed)["middle frame's page"]
    folder = flipped(killed, tmp_path / "data", bits[5], bits[3000])
    before = (folder / "stafeta.db-wal").read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"is damaged at frame \d+ of \d+"):
            stored(folder)
        assert (folder / "stafeta.db-wal").read_bytes() == before


def test_commits_that_were_not_synced_one_by_one_may_be_torn_anywhere(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bits = places(killed)["middle frame's page"]
    folder = flipped(killed, tmp_path / "data", bits[5], bits[3000])
    before = (folder / "stafeta.db-wal").read_bytes()
    found = stored(folder, "os")
    assert 0 < len(found) < COUNT
    assert found == EVERYTHING[: len(found)]
    assert "the last commits" in caplog.text
    assert (folder / "quarantine" / "stafeta.db-wal.1").read_bytes() == before
    assert stored(folder) == found


def test_a_last_commit_that_is_torn_is_left_out_and_told(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bits = places(killed)["last frame's page"]
    assert stored(flipped(killed, tmp_path / "data", bits[5], bits[3000])) == EVERYTHING[:-1]
    assert "the last commit" in caplog.text


def test_what_a_killed_broker_never_committed_is_not_taken_for_something_after_a_torn_commit(
    killed: Path, tmp_path: Path
) -> None:
    bits = places(killed)["last frame's page"]
    folder = flipped(killed, tmp_path / "data", bits[5], bits[3000])
    path = folder / "stafeta.db-wal"
    data = path.read_bytes()
    frame = bytearray(data[-PAGE - FRAME :])
    frame[4:8] = bytes(4)  # pages after the commit: none, so that it is none
    path.write_bytes(data + frame)
    assert stored(folder) == EVERYTHING[:-1]


def test_what_is_left_of_a_torn_commit_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """It was longer than the next, which is torn as well: behind that lies its rest."""
    folder = tmp_path / "begun"

    async def begin() -> int:
        store = SqliteStore(folder)
        await store.open()
        await store.commit(Group(topics={1: topic(1)}))
        shutil.copytree(folder, tmp_path / "0", ignore=shutil.ignore_patterns("*-shm"))
        await store.close()
        return (tmp_path / "0" / "stafeta.db-wal").stat().st_size

    async def tear(number: int, size: int) -> None:
        store = SqliteStore(tmp_path / str(number))
        (known,) = (await store.open()).topics
        assert known.next == 1
        await store.commit(Group(appends=[batch(1, 1, bytes(size), position=1)], position=2))
        torn = tmp_path / str(number + 1)
        shutil.copytree(tmp_path / str(number), torn, ignore=shutil.ignore_patterns("*-shm"))
        await store.close()
        with (torn / "stafeta.db-wal").open("r+b") as file:
            file.seek(end + FRAME + 100)
            file.write(b"x" * 512)

    end = run(begin())
    run(tear(0, 60_000))
    run(tear(1, 30_000))
    assert stored(tmp_path / "2") == []


@pytest.mark.parametrize("left", [1, 5000, PAGE + FRAME, PAGE + FRAME + 10])
def test_what_was_never_written_to_its_end_is_no_damage(
    killed: Path, tmp_path: Path, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = flipped(killed, tmp_path / "data")
    path = folder / "stafeta.db-wal"
    path.write_bytes(path.read_bytes()[:-left])
    assert stored(folder) == EVERYTHING[: COUNT - 1 - (left > PAGE + FRAME)]
    assert not caplog.text


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_small_commits_that_are_synced_write_over_zeros(
    tmp_path: Path, durability: Literal["fsync", "os"]
) -> None:
    path = tmp_path / "stafeta.db-wal"
    sizes: list[int] = []
    more = [*[bytes(200_000)] * 5, b"x"]

    async def work() -> None:
        store = SqliteStore(tmp_path, durability=durability)
        await store.open()
        await store.commit(Group(topics={1: topic(1)}))
        for at in range(1, COUNT + 1):
            await store.commit(Group(appends=[batch(1, at, b"%d" % at * 50, position=at)], position=at + 1))
            sizes.append(path.stat().st_size)
        written = HEADER + len(list(WriteAheadLog(path).frames())) * (FRAME + PAGE)
        assert (written < sizes[-1]) == (durability == "fsync")
        for at, payload in enumerate(more, COUNT + 1):  # past the end of the zeros, and then small again
            await store.commit(Group(appends=[batch(1, at, payload, position=at)], position=at + 1))
        assert path.stat().st_size > sizes[-1]
        shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm", "killed"))
        await store.close()

    run(work())
    assert len(set(sizes)) == (1 if durability == "fsync" else COUNT)
    assert stored(tmp_path / "killed", durability) == [*EVERYTHING, *more]
