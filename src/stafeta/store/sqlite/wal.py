"""The write-ahead log, looked at before SQLite does. (The format: "The WAL File Format" of SQLite's documentation.)

1. SQLite reads the log up to the first frame whose checksum does not match, and forgets the rest without a word: that
   is how it finds the end of what a loss of power has left. A flipped bit in the middle looks the same.
2. Frames of one generation have its salt. Commits are synced one by one, so only the last can be torn: where a commit
   follows that SQLite does not find, something is damaged, or it is that last one.
3. The checksum is linear: from by how much it is off follows which single bit was flipped, but for the high
   bits of words, of which several may fit. A bit that alone fits is put right; a copy of the log as it was goes to
   `quarantine`.
4. What cannot be put right is reported. In the last commit it may be what a loss of power has left, and then nobody has
   heard that it is stored; before that it is damage, and nothing is changed. Where commits are not synced one by one,
   it may be so of any of them.
"""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from stafeta.errors import StoreDamaged

log = logging.getLogger("stafeta.store")

_ROOM = 64  # times as much as is appended to a log has to be free
QUARANTINE = "quarantine"
PAGE = 4096  # of the databases that are made here

_HEADER = Struct(">8I")  # magic, version, page size, number of checkpoints, salt (2), checksum (2)
_FRAME = Struct(">6I")  # page, pages after the commit or 0, salt (2), checksum (2)
_MAGIC = 0x377F0682  # the last bit says in which order the checksum takes the bytes of a word
_MASK = 0xFFFFFFFF
_LAST_FRAME = Struct("=I")  # in the index beside the log: the last frame that SQLite has found
_LAST_FRAME_AT = 16

Checksum = tuple[int, int]


class Frame(NamedTuple):
    """Where a frame lies, and what its header says."""

    number: int  # from 1 on
    offset: int
    commits: bool


def recovered(log_path: Path) -> int:
    """The last frame that SQLite has found. Call while a connection is open that has read something."""
    index = log_path.with_name(log_path.name.removesuffix("wal") + "shm")
    with index.open("rb") as file:
        return int(_LAST_FRAME.unpack_from(file.read(_LAST_FRAME_AT + _LAST_FRAME.size), _LAST_FRAME_AT)[0])


def lengthen(path: str, size: int) -> int:
    """Appends zeros to a log that SQLite writes to, for it to write over: a file that does not grow is synced in half
    the time, since the file system has nothing to write but what is in it. Returns how many bytes that were.

    Zeros go to the end as it is at that moment: never over what SQLite has written, which writes where it would have
    written without them. They are no frames of any generation."""
    with suppress(OSError):  # there is no room; where that matters, SQLite says so
        disk = os.statvfs(path)
        if disk.f_bavail * disk.f_frsize < _ROOM * size:
            return 0  # what room there is, is for messages
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            return os.write(file, bytes(size))
        finally:
            os.close(file)
    return 0


class WriteAheadLog:
    """A log that no connection writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: mmap | bytearray = bytearray()
        with suppress(FileNotFoundError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size:
                self.data = mmap(file.fileno(), 0, access=ACCESS_COPY)  # what is changed stays here

    @property
    def empty(self) -> bool:
        return len(self.data) < _HEADER.size + _FRAME.size or not any(self.data[: _HEADER.size])

    @property
    def _page(self) -> int:
        return int(_HEADER.unpack_from(self.data)[2])

    def _order(self) -> str:
        return ">" if _HEADER.unpack_from(self.data)[0] & 1 else "<"

    def mend_header(self) -> bool:
        """Puts a flipped bit of the header right; true where there was one. Raises StoreDamaged where it is not one."""
        if self._header_is_right():
            return False
        for bit in range(_HEADER.size * 8):
            self.data[bit // 8] ^= 1 << bit % 8
            if self._header_is_right() and self._fits_first_frame():
                return True
            self.data[bit // 8] ^= 1 << bit % 8
        raise self.without_header()

    def without_header(self) -> StoreDamaged:
        return StoreDamaged(
            f"The header of {self.path} is damaged, so that nothing behind it can be read. Restore the folder from a "
            "copy; or move this file away, and what was stored last is lost."
        )

    @property
    def whole_header(self) -> bool:
        return not self.empty and self._header_is_right()

    @property
    def beheaded(self) -> bool:
        """True where there is nothing in place of the header, but several commits behind it. One alone may be the first
        that was ever written, and torn."""
        size = _FRAME.size + PAGE
        if len(self.data) < _HEADER.size + 2 * size or any(self.data[: _HEADER.size]):
            return False
        frames = [
            _FRAME.unpack_from(self.data, at) for at in range(_HEADER.size, len(self.data) - size + 1, size)
        ]
        salts = Counter(frame[2:4] for frame in frames if frame[1])
        salts.pop((0, 0), None)
        return any(commits > 1 for commits in salts.values())

    def _header_is_right(self) -> bool:
        magic, _, page, _, _, _, *checksum = _HEADER.unpack_from(self.data)
        plausible = magic | 1 == _MAGIC | 1 and 512 <= page <= 65536 and not page & page - 1
        return plausible and _checksum(bytes(self.data[:24]), self._order(), (0, 0)) == tuple(checksum)

    def _fits_first_frame(self) -> bool:
        """Several bits may explain the header's checksum; but one the first frame as well, which goes on from it."""
        header = _HEADER.unpack_from(self.data)
        complete = len(self.data) >= _HEADER.size + _FRAME.size + self._page
        return complete and self._is_right(_HEADER.size, header[4:6], header[6:8])

    def frames(self) -> Iterator[Frame]:
        """Those of this generation, also where a bit of their salt was flipped."""
        salt = _HEADER.unpack_from(self.data)[4:6]
        size = _FRAME.size + self._page
        for number, offset in enumerate(range(_HEADER.size, len(self.data) - size + 1, size), 1):
            _, pages, *rest = _FRAME.unpack_from(self.data, offset)
            if rest[0] != salt[0] and rest[1] != salt[1]:
                continue  # of an earlier one, or never written; what is behind it may be torn off
            yield Frame(number, offset, pages != 0)

    def mend_from(self, last: int) -> tuple[int, Frame | None]:
        """Puts right what was flipped behind the last frame that is known to be right. Returns how many bits that
        were, and the first frame that could not be put right."""
        salt, before = _HEADER.unpack_from(self.data)[4:6], _HEADER.unpack_from(self.data)[6:8]
        mended = 0
        for frame in self.frames():
            if frame.number > last and not self._is_right(frame.offset, salt, before):
                if not self._mend(frame.offset, salt, before):
                    return mended, frame
                mended += 1
            before = self._stored(frame.offset)
        return mended, None

    def _stored(self, offset: int) -> Checksum:
        a, b = _FRAME.unpack_from(self.data, offset)[4:6]
        return a, b

    def _computed(self, offset: int, before: Checksum) -> Checksum:
        return _checksum(self._covered(offset), self._order(), before)

    def _covered(self, offset: int) -> bytes:
        """What a frame's checksum covers: the beginning of its header, and the page."""
        start = offset + _FRAME.size
        return bytes(self.data[offset : offset + 8]) + bytes(self.data[start : start + self._page])

    def _is_right(self, offset: int, salt: tuple[int, ...], before: Checksum) -> bool:
        return _FRAME.unpack_from(self.data, offset)[2:4] == salt and self._stored(offset) == self._computed(
            offset, before
        )

    def _mend(self, offset: int, salt: tuple[int, ...], before: Checksum) -> bool:
        """Puts the one bit of a frame right that alone can have been flipped; false where there is none such."""
        page, pages, a, b, *_ = _FRAME.unpack_from(self.data, offset)
        stored, computed = self._stored(offset), self._computed(offset, before)
        if (a, b) != salt:
            if stored != computed or _apart((a, b), salt) != 1:
                return False
            _FRAME.pack_into(self.data, offset, page, pages, *salt, *stored)
            return True
        bits = list(islice(_flipped(self._covered(offset), self._order(), computed, stored), 2))
        after = offset + _FRAME.size + self._page
        if _apart(computed, stored) == 1 and after + _FRAME.size + self._page <= len(self.data):
            # Either the checksum itself or the page: the next frame goes on from the right one.
            if self._is_right(after, salt, computed):
                _FRAME.pack_into(self.data, offset, page, pages, *salt, *computed)
                return True
            if not self._is_right(after, salt, stored):
                return False
        elif _apart(computed, stored) == 1 and not bits:
            _FRAME.pack_into(self.data, offset, page, pages, *salt, *computed)
            return True
        elif _apart(computed, stored) == 1:
            return False
        if len(bits) != 1:
            return False
        bit = bits[0]
        self.data[offset + bit // 8 if bit < 64 else offset + _FRAME.size + bit // 8 - 8] ^= 1 << bit % 8
        return True

    def accept(self) -> bool:
        """Gives every frame the checksum of what it holds, so that SQLite reads it: what is damaged in it the checksums
        of rows tell. False where there are frames that it does not get to."""
        salt, before = _HEADER.unpack_from(self.data)[4:6], _HEADER.unpack_from(self.data)[6:8]
        for number, frame in enumerate(list(self.frames()), 1):
            if frame.number != number:
                return False
            page, pages, *_ = _FRAME.unpack_from(self.data, frame.offset)
            if not self._is_right(frame.offset, salt, before):
                computed = self._computed(frame.offset, before)
                _FRAME.pack_into(self.data, frame.offset, page, pages, *salt, *computed)
            before = self._stored(frame.offset)
        return True

    def keep_copy(self) -> Path:
        """Puts a copy of the file, as it is, into quarantine; returns where it is."""
        folder = self.path.parent / QUARANTINE
        folder.mkdir(exist_ok=True)
        number = 1 + sum(1 for name in os.listdir(folder) if name.startswith(self.path.name))
        kept = folder / f"{self.path.name}.{number}"
        shutil.copyfile(self.path, kept)
        _sync(kept)
        return kept

    def cut_off(self, frame: Frame) -> None:
        """Removes this frame and all behind it. SQLite would write over some of them only; the others would look like
        commits that come after."""
        os.truncate(self.path, frame.offset)
        _sync(self.path)

    def save(self) -> None:
        """Replaces the file by what was put right."""
        with self.path.open("r+b") as file:
            file.write(self.data[:])
        _sync(self.path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """In how many bits they differ."""
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def _checksum(data: bytes, order: str, before: Checksum) -> Checksum:
    a, b = before
    words = Struct(f"{order}{len(data) // 4}I").unpack(data)
    for at in range(0, len(words), 2):
        a = a + words[at] + b & _MASK
        b = b + words[at + 1] + a & _MASK
    return a, b


def _flipped(data: bytes, order: str, computed: Checksum, stored: Checksum) -> Iterator[int]:
    """Bits of the data, counted from its beginning, any one of which would explain that the checksum is another."""
    off = (computed[0] - stored[0]) & _MASK, (computed[1] - stored[1]) & _MASK
    # By how much a 1 that is added to a word changes the checksum: of the last pair of words, and from there backwards.
    first, second = (1, 1), (0, 1)
    for pair in reversed(range(len(data) // 8)):
        for word, (a, b) in ((2 * pair, first), (2 * pair + 1, second)):
            for place in range(32):
                byte = 4 * word + (place // 8 if order == "<" else 3 - place // 8)
                error = 1 << place if data[byte] >> place % 8 & 1 else -(1 << place)
                if (a * error & _MASK, b * error & _MASK) == off:
                    yield 8 * byte + place % 8
        first, second = _further(first), _further(second)


def _further(change: tuple[int, int]) -> tuple[int, int]:
    """What becomes of a change of the checksum with the next pair of words."""
    a = (change[0] + change[1]) & _MASK
    return a, (change[1] + a) & _MASK
