"""Large bodies of blocks, in files beside the database.

1. A database would write such a body twice, page by page: into its write-ahead log and from there to its place. Here it
   is written once, in one piece, and synced before the database says that it is there: also where the database itself
   is not synced, since it may reach the disk in any order.
2. A segment is a file that is only appended to, until it is full; then comes the next. After a start there is a new
   one: what an unfinished commit may have left at the end of the last is never looked at.
3. A segment goes when no block and nothing staged lies in it.
"""

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from stafeta.errors import StoreDamaged

FOLDER = "segments"
SIZE = 64 << 20  # bytes after which a segment is full
WORTH = 256 << 10  # bytes of large bodies in one commit that are worth a sync of their own
PART = 8  # a body is large that has at least this part of it

_PLACE = Struct("<qq")


class Place(NamedTuple):
    """What a row of the database has of a body: all of it, or where it lies."""

    segment: int | None
    content: Any


def read(folder: Path, segment: int | None, content: bytes) -> bytes:
    """The body that a row stands for. FileNotFoundError where its segment has gone."""
    if segment is None:
        return content
    offset, length = _PLACE.unpack(content)
    file = os.open(_path(folder, segment), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, length, offset)
    finally:
        os.close(file)


def missing(folder: Path, block: int, segment: int | None) -> StoreDamaged:
    return StoreDamaged(
        f"The file {_path(folder, segment or 0)} is missing, which holds stored batch {block}. "
        "Restore the data folder from a copy."
    )


def _path(folder: Path, segment: int) -> Path:
    return folder / FOLDER / f"{segment:08}"


class Segments:
    """Used by the writer's thread alone."""

    def __init__(self, folder: Path, live: Container[int], *, worth: int) -> None:
        """`live` are the segments in which something lies; the others go."""
        self._folder = folder
        self._worth = worth
        self._file: int | None = None
        self._end = 0
        self._last = 0
        self.drop_except(live)
        self._last = max(self._present(), default=0)

    def put(self, bodies: Sequence[Any]) -> list[Place]:
        """Where these bodies are from now on. If it raises, they are nowhere."""
        large = [body for body in bodies if self._is_large(body)]
        if not large or sum(map(len, large)) < self._worth:
            return [Place(None, body) for body in bodies]
        if self._file is None or self._end >= SIZE:
            self._begin()
        assert self._file is not None
        start = self._end
        try:
            for body in large:
                _write(self._file, body)
            os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, start)  # on a full disk there is no room for what nobody will read
            self.close()  # what the file holds now nobody can say: go on with another
            raise
        self._end += sum(map(len, large))
        return list(self._places(bodies, start))

    def _places(self, bodies: Sequence[Any], offset: int) -> Iterator[Place]:
        for body in bodies:
            if self._is_large(body):
                yield Place(self._last, _PLACE.pack(offset, len(body)))
                offset += len(body)
            else:
                yield Place(None, body)

    def _is_large(self, body: Any) -> bool:
        return len(body) * PART >= self._worth

    def _begin(self) -> None:
        self.close()
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        self._file = os.open(
            _path(self._folder, self._last + 1),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        self._last += 1
        self._end = 0
        for place in (folder, self._folder):
            _sync_folder(place)

    def drop_except(self, live: Container[int]) -> None:
        """Remove the files in which nothing lies."""
        for segment in self._present():
            if segment not in live and (segment != self._last or self._file is None):
                _path(self._folder, segment).unlink(missing_ok=True)

    def _present(self) -> list[int]:
        folder = self._folder / FOLDER
        return [int(name) for name in os.listdir(folder) if name.isdecimal()] if folder.exists() else []

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write(file: int, body: Any) -> None:
    left = memoryview(body)
    while left:
        left = left[os.write(file, left) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
