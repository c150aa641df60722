"""Files that are on the disk before anybody names them: a loss of power takes nothing that was acknowledged.

Of folders of this machine. Object stores, and what another machine writes, answer for themselves.
"""

import io
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stafeta.pipeline import disk

_PART: Final = 1 << 20  # bytes that are read at a time


class SyncedFile(io.RawIOBase):
    """A new file. Once it is closed, what it holds and its name are on the disk. Where it is `sealed`, its name has the
    checksum of what it holds by then."""

    def __init__(self, path: str, *, overwrite: bool = False, sealed: bool = False) -> None:
        make_folders(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
        self.path = path
        self._sealed = sealed
        self._checksum = 0
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
        if self._sealed:
            self._checksum = zlib.crc32(data, self._checksum)
        return count

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            self._sync()
        finally:
            os.close(self._descriptor)
        if self._sealed:
            with suppress(FileNotFoundError):  # of a file that was removed after all
                self.path = renamed(self.path, self._checksum)
        sync_folder(os.path.dirname(self.path))

    def _sync(self) -> None:
        os.fsync(self._descriptor)


def renamed(path: str, checksum: int) -> str:
    """Gives a file a name that has a checksum before its ending."""
    stem, ending = os.path.splitext(path)
    new = f"{stem}-{checksum:08x}{ending}"
    os.rename(path, new)
    return new


def checksum_of(path: str) -> int:
    """The checksum of what a file of this machine holds."""
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        while part := file.read(_PART):
            checksum = zlib.crc32(part, checksum)
    return checksum


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
