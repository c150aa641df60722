"""Full disks, real ones: at the backup's destination, where it is put together, and where it is restored. A sentence,
and nothing that passes for what it is not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from stafeta.backup import points, restoring
from stafeta.backup.destination import Destination
from stafeta.broker import Broker
from stafeta.errors import StoreError
from stafeta.testing.broker import plain_environment
from tests.backup.lives import Life
from tests.broker.stores import FailingSqlite, run
from tests.faults.test_disk import small_disk
from tests.fork_server import FORKS
from tests.soundness import assert_sound

__all__ = ["small_disk"]

ROOMS = (0, 64 << 10, 1 << 20)  # bytes that are left
FOLDER_UNUSABLE = 5


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """A store of 2.4 MB, in a segment; in the database, some kB."""
    one = Life(tmp_path, large=400_000)

    async def begin() -> None:
        await one.begin()
        for _ in range(4):
            await one.append([1, 2, 3])

    run(begin())
    yield one
    one.store.crash()


def stafeta(*words: object, **variables: str) -> "CompletedProcess[str]":
    return FORKS.run(["-m", "stafeta", *map(str, words)], {**plain_environment(), **variables})


def assert_refused(found: "CompletedProcess[str]", sentence: str) -> None:
    assert (found.returncode, found.stdout) == (FOLDER_UNUSABLE, ""), found
    assert sentence in found.stderr
    assert found.stderr.count("\n") == 1, found.stderr


@contextmanager
def filled(disk: Path, room: int) -> Iterator[None]:
    """So many bytes are left."""
    ballast = disk / "ballast"
    found = os.statvfs(disk)
    ballast.write_bytes(bytes(found.f_bavail * found.f_frsize - room))
    try:
        yield
    finally:
        ballast.unlink()


def test_at_the_destination(life: Life, small_disk: Path, tmp_path: Path) -> None:
    words = ("backup", small_disk / "backups", "--data", life.folder)
    destination = Destination.of(str(small_disk / "backups"))
    assert stafeta(*words).returncode == 0
    for _ in range(2):
        run(life.append([1, 2, 3]))
    before = points.names(destination)
    for room in ROOMS:
        with filled(small_disk, room):
            assert_refused(
                stafeta(*words), f"No room is left at {small_disk / 'backups'}. What was there before"
            )
            assert points.names(destination) == before
            assert restoring.verify(destination, points.find(destination, None)) == []
    assert stafeta(*words).returncode == 0
    new = points.names(destination)
    assert new[:-1] == before
    assert points.names(destination, points.NOTES) == []
    for number, name in enumerate(new):
        restoring.restore(destination, points.find(destination, name), tmp_path / f"restored-{number}")
        assert_sound(tmp_path / f"restored-{number}")


def test_where_it_is_put_together(life: Life, small_disk: Path, tmp_path: Path) -> None:
    words = ("backup", tmp_path / "there", "--data", life.folder)
    for room in (
        4 << 10,
        64 << 10,
    ):  # one that takes no file is no folder for Python, which looks for another
        with filled(small_disk, room):
            assert_refused(
                stafeta(*words, TMPDIR=str(small_disk)), "more room in the environment variable TMPDIR."
            )
    assert points.names(Destination.of(str(tmp_path / "there"))) == []
    assert not list(small_disk.iterdir())
    assert stafeta(*words, TMPDIR=str(small_disk)).returncode == 0


def test_where_it_is_restored(life: Life, small_disk: Path) -> None:
    life.back_up()
    data = small_disk / "data"
    words = ("restore", life.destination.shown, "--data", data)
    for room in ROOMS:
        with filled(small_disk, room):
            assert_refused(
                stafeta(*words), f"No room is left for the data folder {data}, to which a backup of"
            )
            with pytest.raises(StoreError, match=r"was not finished\. Restore it again"):
                run(Broker.open(FailingSqlite(data)))
    found = stafeta(*words)
    assert found.returncode == 0, found
    assert "Sound: 12 messages of 3 topics" in found.stdout
