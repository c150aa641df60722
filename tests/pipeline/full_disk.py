"""Commits, merges and sweeps of a lake on a disk of a few megabytes that fills at every step of them.

python -m tests.pipeline.full_disk FOLDER, in a mount namespace of its own: a small file system is mounted there.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stafeta.pipeline.connector import file_source
from stafeta.pipeline.jobs.auditing import stored
from stafeta.pipeline.lake import Lake, catalog, files, unused
from tests.pipeline.lakes import arrow, offsets, run, settings, whole

SIZE: Final = "4m"
ROOM: Final = range(0, 96 << 10, 8 << 10)  # bytes that are left, of which a commit takes some
ROWS: Final = 3


class Disk:
    """A disk that is full but for some bytes."""

    def __init__(self, place: Path) -> None:
        self._ballast = place / "ballast"

    def fill(self, room: int) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - room))

    def empty(self) -> None:
        self._ballast.unlink()


def archive(lake: Lake, first: int) -> None:
    """Adds some messages, as a task and the driver of the archive do."""
    table = lake.table("messages").location()
    file = file_source._File(table, 20_000)
    file.add(arrow(run("a", first, first + ROWS)).to_batches()[0])
    (url,) = {row["url"] for row in file.finish().to_pylist()}
    no_session: Any = None
    lake.archive_files(no_session, [url], {"a": [(first, first + ROWS)]}, "archive", first)


def check(lake: Lake) -> int:
    """What the table says is in its files, and they are whole; returns how much there is."""
    there = offsets(lake).get("a", [])
    assert there == whole(1, len(there)), there
    assert lake.archived() == ({"a": [(1, len(there) + 1)]} if there else {})
    assert stored.examined(lake.table("messages")).wrong == {}
    return len(there)


def main(place: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(place)], check=True)
    disk, lake, failed, count = Disk(place), Lake(settings(place)), 0, 0
    lake.table("messages")
    for room in ROOM:
        disk.fill(room)
        try:
            archive(lake, count + 1)
        except Exception as error:  # noqa: BLE001 - of whatever kind
            print(f"{room >> 10} KiB left: {type(error).__name__}: {error}".splitlines()[0])
            failed += 1
        with suppress(Exception):
            unused.sweep(lake.table("messages"), keep=0.0, now=time.time() + 2 * unused.UNDER_WAY)
        disk.empty()
        found = check(lake)
        assert found in (count, count + ROWS), (found, count)
        archive(lake, found + 1)  # it goes on when there is room
        count = check(lake)
        assert count == found + ROWS
        if room % (16 << 10) == 0:  # as another process finds it
            catalog._catalogs.clear()
            assert check(Lake(settings(place))) == count
    unused.sweep(lake.table("messages"), keep=0.0)
    later = time.time() + 2 * unused.UNDER_WAY
    unused.sweep(lake.table("messages"), keep=0.0, now=later)
    assert check(lake) == count
    left = set(files.listed(f"{lake.table('messages').location()}/data"))
    assert left == {task.file.file_path for task in lake.table("messages").scan().plan_files()}
    print(f"{failed} of {len(ROOM)} failed, {count} messages")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
