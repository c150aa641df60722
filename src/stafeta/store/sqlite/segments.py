"""Large bodies of blocks, in files beside the database.

1. A database would write such a body twice, page by page: into its write-ahead log and from there to its place. Here it
   is written once, in one piece, and synced before the database says that it is there: also where the database itself
   is not synced, since it may reach the disk in any order.
2. A segment is a file that is only appended to, until it is full; then comes the next. After a start there is a new
   one: what an unfinished commit may have left at the end of the last is never looked at.
3. A segment goes when no block and nothing staged lies in it, and nothing that was written ahead of its commit.
"""

import errno
import os
import struct
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from stafeta.errors import StoreDamaged
from stafeta.store.blocks import damaged
from stafeta.store.sqlite.folder import sync_folder, sync_log

FOLDER = "segments"
SIZE = 64 << 20  # bytes after which a segment is full
WORTH = 256 << 10  # bytes of large bodies in one commit that are worth a sync of their own
PART = 8  # a body is large that has at least this part of it

_PLACE = Struct("<qq")


class BodyLocation(NamedTuple):
    """What a row of the database has of a body: all of it, or where it lies."""

    segment: int | None
    content: Any


def read(folder: Path, block: int, segment: Any, content: Any) -> bytes:
    """The body that a row stands for."""
    if not isinstance(content, bytes) or not isinstance(segment, int | None):  # it is what another row has
        raise damaged(block)
    if segment is None:
        return content
    try:
        offset, length = _PLACE.unpack(content)
        file = os.open(path_of(folder, segment), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if offset >= 0 and 0 <= length <= os.fstat(file).st_size - offset:
                return os.pread(file, length, offset)
        finally:
            os.close(file)
        why = "it does not lie within it"
    except (struct.error, FileNotFoundError) as error:
        why = str(error)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        why = os.strerror(errno.EIO)
    raise StoreDamaged(f"Stored batch {block} is damaged: it cannot be read from segment {segment} ({why}).")


def end_of(content: Any) -> int:
    """Where a body ends in its segment, of which a row has the place; 0 where that is damaged."""
    try:
        offset, length = _PLACE.unpack(content)
    except (struct.error, TypeError):
        return 0
    return int(offset + length)


def path_of(folder: Path, segment: int) -> Path:
    return folder / FOLDER / f"{segment:08}"


def present(folder: Path) -> list[int]:
    """The segments that there are."""
    place = folder / FOLDER
    return [int(name) for name in os.listdir(place) if name.isdecimal()] if place.exists() else []


class Hold:
    """While somebody has it, its segment stays, whatever the database says of it."""

    __slots__ = ("__weakref__",)


class Segments:
    """Used by one thread. Another one has its own beside it, with files of its own."""

    def __init__(self, folder: Path, *, worth: int, beside: "Segments | None" = None) -> None:
        self._folder = folder
        self._worth = worth
        self._file: int | None = None
        self._end = 0
        self._number = 0  # of the file
        self._numbers: Iterator[int] = (
            count(max(present(folder), default=0) + 1) if beside is None else beside._numbers
        )
        self._holds: WeakValueDictionary[int, Hold] = (
            WeakValueDictionary() if beside is None else beside._holds
        )
        self.hold: Hold | None = None  # on the file

    def put(self, bodies: Sequence[Any]) -> list[BodyLocation]:
        """Where these bodies are from now on. If it raises, they are nowhere."""
        large = [body for body in bodies if self._is_large(body)]
        if not large or not self.is_worth(sum(map(len, large))):
            return [BodyLocation(None, body) for body in bodies]
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

    def is_worth(self, size: int) -> bool:
        """Whether a body of so many bytes goes into a segment, and not into the database."""
        return size >= self._worth

    def _places(self, bodies: Sequence[Any], offset: int) -> Iterator[BodyLocation]:
        for body in bodies:
            if self._is_large(body):
                yield BodyLocation(self._number, _PLACE.pack(offset, len(body)))
                offset += len(body)
            else:
                yield BodyLocation(None, body)

    def _is_large(self, body: Any) -> bool:
        return len(body) * PART >= self._worth

    def _begin(self) -> None:
        self.close()
        folder = self._folder / FOLDER
        folder.mkdir(exist_ok=True)
        number, hold = next(self._numbers), Hold()
        self._holds[number] = hold  # before it is there: whoever looks which files are unused finds it held
        file = os.open(
            path_of(self._folder, number),
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        try:
            for place in (folder, self._folder):
                sync_folder(place)
        except OSError:
            os.close(file)  # it may not be there after a loss of power: go on with another
            raise
        self._file, self._number, self.hold = file, number, hold
        self._end = 0

    def drop_except(self, live: Container[int]) -> None:
        """Remove the files in which nothing lies. Called between commits, by who writes them: what was written ahead is
        held until its commit is over."""
        unused = [
            segment for segment in present(self._folder) if segment not in live and segment not in self._holds
        ]
        if unused:
            # The commits that let go of them come first, also where commits do not wait for the disk.
            sync_log(self._folder)
        for segment in unused:
            path_of(self._folder, segment).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = self.hold = None


def _write(file: int, body: Any) -> None:
    left = memoryview(body)
    while left:
        left = left[os.write(file, left) :]
