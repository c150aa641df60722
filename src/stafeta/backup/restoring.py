"""A data folder made of a point, and points that are looked at without that."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from stafeta.backup.destination import Destination, StoredFile, Throttle
from stafeta.backup.points import Point
from stafeta.errors import BackupError, StoreError, StoreFull
from stafeta.store.sqlite import segments
from stafeta.store.sqlite.copying import BlockRow
from stafeta.store.sqlite.folder import DATABASE, RESTORING, lock, sync_folder, translating_errors
from stafeta.store.sqlite.rebuilding import Rebuilding, Resumed


def restore(
    destination: Destination, point: Point, folder: Path, advance: Callable[[int], None] = lambda count: None
) -> Resumed:
    """Makes the folder, which has to be empty, or what a restore that was not finished has left."""
    _check_empty(folder)
    held = lock(folder)
    try:
        with translating_errors(folder):
            return _restored(destination, point, folder, Throttle(0, advance))
    except StoreFull:
        raise StoreFull(
            f"No room is left for the data folder {folder}, to which a backup of {point.size:,} bytes is restored; no "
            "broker starts on it. Free some space, and restore it again, to this folder or another."
        ) from None
    finally:
        os.close(held)


def _check_empty(folder: Path) -> None:
    found = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is no folder.")
    if RESTORING not in found and found - {"lock", "lost+found"}:
        raise StoreError(
            f"{folder} is not empty: a backup is restored to an empty folder, so that nothing is lost. Name another "
            "with --data."
        )


def _restored(destination: Destination, point: Point, folder: Path, throttle: Throttle) -> Resumed:
    (folder / RESTORING).write_text(f"{point.name}\n")
    _sync(folder / RESTORING)
    sync_folder(folder)
    place = folder / segments.FOLDER
    for left in (*place.glob("*"), *folder.glob(f"{DATABASE}*")):
        left.unlink()
    place.mkdir(exist_ok=True)
    for one in point.segments:
        path = segments.path_of(folder, one.number)
        _fetch(destination, one.file, path, throttle)
        os.utime(path, ns=(one.modified, one.modified))  # the next backup knows it by that
    _fetch(destination, point.state, folder / DATABASE, throttle)
    packs = (_rows(destination, pack.file, throttle) for pack in point.packs)
    resumed = Rebuilding(folder).run(packs, point.position, time.time_ns() // 1000)
    _sync(folder / DATABASE)
    sync_folder(place)
    sync_folder(folder)
    (folder / RESTORING).unlink()
    sync_folder(folder)
    return resumed


def _fetch(destination: Destination, file: StoredFile, path: Path, throttle: Throttle) -> None:
    with path.open("wb") as new:
        for piece in destination.pieces(file, throttle):
            new.write(piece)
        new.flush()
        os.fsync(new.fileno())


def _rows(destination: Destination, file: StoredFile, throttle: Throttle) -> Iterator[BlockRow]:
    content = b"".join(destination.pieces(file, throttle))  # checked before anything of it is used
    try:
        with pa.ipc.open_stream(content) as reader:
            for batch in reader:
                columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
                yield from zip(*columns, strict=True)
    except pa.ArrowInvalid as error:
        raise BackupError(f"{destination.shown}: {file.name} cannot be read: {error}") from None


def verify(
    destination: Destination, point: Point, advance: Callable[[int], None] = lambda count: None
) -> list[str]:
    """What is wrong with the files of a point; nothing where it can be restored."""
    wrong: list[str] = []
    throttle = Throttle(0, advance)
    for file in point.files:
        try:
            for _ in destination.pieces(file, throttle):
                pass
        except BackupError as error:
            wrong.append(str(error))
    return wrong


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
