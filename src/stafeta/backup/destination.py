"""Where backups are: a folder, or whatever PyArrow's file systems reach.

1. What is there is not changed: a file is written once, under a name of its own, and removed when no point names it.
2. On this machine a file has its name when it is whole and on the disk. Elsewhere it may be cut off; a point names its
   length and checksum, and a point that is cut off does not have its own.
"""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from stafeta.errors import BackupError

CHUNK = 1 << 20
PARTIAL = ".partial"


class StoredFile(NamedTuple):
    """A file of the destination."""

    name: str
    size: int
    sha256: str


class Throttle:
    """Lets no more than so many bytes a second pass; as many as there are, where it is 0. `advance` is called with how
    many have."""

    def __init__(self, rate: int = 0, advance: Callable[[int], None] = lambda count: None) -> None:
        self._rate = rate
        self._advance = advance
        self._begin = time.monotonic()
        self._passed = 0

    def passed(self, count: int) -> None:
        self._advance(count)
        self._passed += count
        if self._rate:
            time.sleep(max(0.0, self._begin + self._passed / self._rate - time.monotonic()))


class Destination:
    def __init__(self, filesystem: fs.FileSystem, path: str, shown: str = "") -> None:
        self._fs = filesystem
        self._path = path.rstrip("/")
        self.shown = shown or path
        self._local = isinstance(filesystem, fs.LocalFileSystem)

    @classmethod
    def of(cls, where: str) -> "Destination":
        """A folder, or a URL."""
        if "://" not in where:
            return cls(fs.LocalFileSystem(), str(Path(where).absolute()), where)
        try:
            filesystem, path = fs.FileSystem.from_uri(where)
        except (OSError, ValueError) as error:
            raise BackupError(f"{where} cannot be used: {error}") from None
        return cls(filesystem, path, where)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # as all of Arrow's that are about files
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BackupError(
                    f"No room is left at {self.shown}. What was there before is as it was; free some space, and make "
                    "the backup again."
                ) from None
            raise BackupError(f"{self.shown}: {doing}: {error.strerror or error}") from None

    def sizes(self, folder: str) -> dict[str, int]:
        """The files in a folder, by name."""
        with self._explained(f"{folder} cannot be listed"):
            selector = fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True)
            found = self._fs.get_file_info(selector)
        return {one.base_name: one.size for one in found if one.type == fs.FileType.File}

    def names(self, folder: str) -> list[str]:
        """In their order, those that are not whole left out."""
        return sorted(name for name in self.sizes(folder) if not name.endswith(PARTIAL))

    def size(self, name: str) -> int | None:
        """None where there is no such file."""
        with self._explained(f"{name} cannot be looked at"):
            found = self._fs.get_file_info(f"{self._path}/{name}")
            return int(found.size) if found.type == fs.FileType.File else None

    def write(self, name: str, content: Iterable[Any], throttle: Throttle | None = None) -> StoredFile:
        """Writes a file, of which nobody knows until it is whole, where this machine has it."""
        path = f"{self._path}/{name}"
        written = path + PARTIAL if self._local else path
        checksum, size = hashlib.sha256(), 0
        with self._explained(f"{name} cannot be written"):
            self._fs.create_dir(path.rpartition("/")[0])
            try:
                with self._fs.open_output_stream(written) as stream:
                    for piece in content:
                        stream.write(piece)
                        checksum.update(piece)
                        size += len(piece)
                        if throttle is not None:
                            throttle.passed(len(piece))
                if self._local:
                    _sync(written)
                    os.rename(written, path)
                    _sync(path.rpartition("/")[0])
            except BaseException:
                with suppress(OSError):
                    self._fs.delete_file(written)  # it may be what the disk is full of
                raise
        return StoredFile(name, size, checksum.hexdigest())

    def read(self, name: str) -> bytes:
        """A small file."""
        with (
            self._explained(f"{name} cannot be read"),
            self._fs.open_input_stream(f"{self._path}/{name}") as stream,
        ):
            return bytes(stream.read())

    def pieces(self, file: StoredFile, throttle: Throttle | None = None) -> Iterator[bytes]:
        """The content of a file; raises at its end where it is not what was written."""
        checksum, size = hashlib.sha256(), 0
        with (
            self._explained(f"{file.name} cannot be read"),
            self._fs.open_input_stream(f"{self._path}/{file.name}") as stream,
        ):
            while piece := stream.read(CHUNK):
                checksum.update(piece)
                size += len(piece)
                yield piece
                if throttle is not None:
                    throttle.passed(len(piece))
        if (size, checksum.hexdigest()) != (file.size, file.sha256):
            raise BackupError(f"{self.shown}: {file.name} is damaged: it is not what was written.")

    def remove(self, name: str) -> None:
        with self._explained(f"{name} cannot be removed"), suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._path}/{name}")

    def remove_partial(self, folder: str, running: str) -> None:
        """What killed backups of this machine have left unfinished; not what the running one, of that name, writes."""
        for name in self.sizes(folder):
            if name.endswith(PARTIAL) and not name.startswith(running):
                self.remove(f"{folder}/{name}")


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
