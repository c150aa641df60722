"""Files that are on the disk before anybody names them: a loss of power takes nothing that was acknowledged.

Of folders of this machine. Object stores, and what another machine writes, answer for themselves.
"""

import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stafeta.pipeline import disk


class SyncedFile(io.RawIOBase):
    """A new file. Once it is closed, what it holds and its name are on the disk."""

    def __init__(self, path: str, *, overwrite: bool = False) -> None:
        make_folders(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
        self._path = path
        self._size = 0
        self._descriptor = os.open(path, flags, 0o666)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._size += count
        return count

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
        sync_folder(os.path.dirname(self._path))


def make_folders(path: str) -> None:
    """Makes a folder and those above it, which are there after a loss of power."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folders(above)
    with suppress(FileExistsError):  # somebody else was quicker
        os.mkdir(path)
    sync_folder(above)


def sync_folder(path: str) -> None:
    """Puts the names in a folder on the disk."""
    disk.sync(Path(path))


def sync_files(paths: Iterable[str], root: str) -> None:
    """Puts files that others wrote on the disk, with their names and those of the folders between them and `root`."""
    folders: set[str] = {root}
    for path in paths:
        disk.sync(Path(path))
        above = Path(path).parents
        folders.update(str(folder) for folder in above if folder.is_relative_to(root))
    for folder in sorted(folders, reverse=True):
        sync_folder(folder)
