"""Points: what there was at one moment, as a list of files.

1. A point is written last, and has a checksum of its own: one that can be read is complete, as long as its files are as
   it says.
2. While a backup is made, a note says so, and which files it has finished. Another backup waits for its end; after one
   that was killed, the next uses what it finished.
3. A pack has the blocks of a range of numbers, those that were there when it was made. It holds for every log that goes
   on from there, which its mark tells. (broker/runs.py)
"""

import hashlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

from stafeta.backup.destination import Destination, StoredFile
from stafeta.errors import BackupError
from stafeta.times import iso, time_of

POINTS: Final = "points"
NOTES: Final = "running"
FILES: Final = "files"
FORMAT: Final = 1
LEASE: Final = 120.0  # seconds for which a note counts

T = TypeVar("T", "Point", "Note")


@dataclass
class Pack:
    """Blocks of the numbers from `first` to `last`."""

    file: StoredFile
    first: int
    last: int
    blocks: int
    mark: str


@dataclass
class Segment:
    file: StoredFile
    number: int
    modified: int  # nanoseconds, as the data folder has it


@dataclass
class Note:
    """A backup that is being made."""

    name: str
    host: str
    process: int
    beat: float
    packs: list[Pack] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    format: int = FORMAT

    @property
    def alive(self) -> bool:
        if self.host == socket.gethostname() and not _runs(self.process):
            return False
        return abs(time.time() - self.beat) < LEASE


@dataclass
class Point:
    name: str
    taken: int  # microseconds
    version: str
    position: int
    mark: str
    topics: int
    state: StoredFile
    packs: list[Pack]
    segments: list[Segment]
    format: int = FORMAT

    @property
    def files(self) -> list[StoredFile]:
        return [self.state, *(one.file for one in self.packs), *(one.file for one in self.segments)]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def time(self) -> str:
        return iso(time_of(self.taken), "seconds")


def new_name(taken: int) -> str:
    """The names of points are in the order of their times."""
    return time_of(taken).strftime("%Y%m%dT%H%M%S.%fZ") + "-" + os.urandom(2).hex()


def save(destination: Destination, folder: str, one: Point | Note) -> None:
    content = json.dumps(asdict(one), indent=1)
    whole = json.dumps({"sha256": hashlib.sha256(content.encode()).hexdigest(), "content": content})
    destination.write(f"{folder}/{one.name}.json", [whole.encode()])


def read(destination: Destination, kind: type[T], folder: str, name: str) -> T:
    """Raises BackupError where it is not whole."""
    path = f"{folder}/{name}.json"
    try:
        whole = json.loads(destination.read(path))
        content = whole["content"]
        if hashlib.sha256(content.encode()).hexdigest() != whole["sha256"]:
            raise ValueError
        values = json.loads(content)
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"{destination.shown}: {path} is damaged, or was not written to its end.") from None
    if values.get("format") != FORMAT:
        raise BackupError(
            f"{destination.shown}: {path} was written by another version of Stafeta (its format is "
            f"{values.get('format')}, this program knows {FORMAT})."
        )
    return kind(**{one.name: _restored(one.name, values[one.name]) for one in fields(kind)})


def _restored(name: str, value: Any) -> Any:
    if name == "state":
        return StoredFile(*value)
    if name == "packs":
        return [Pack(**{**one, "file": StoredFile(*one["file"])}) for one in value]
    if name == "segments":
        return [Segment(**{**one, "file": StoredFile(*one["file"])}) for one in value]
    return value


def names(destination: Destination, folder: str = POINTS) -> list[str]:
    """The oldest first."""
    return [name.removesuffix(".json") for name in destination.names(folder) if name.endswith(".json")]


def all_points(destination: Destination) -> tuple[list[Point], list[str]]:
    """Those that can be read, the oldest first; and what is wrong with others."""
    found: list[Point] = []
    wrong: list[str] = []
    for name in names(destination):
        try:
            found.append(read(destination, Point, POINTS, name))
        except BackupError as error:
            wrong.append(str(error))
    return found, wrong


def find(destination: Destination, wanted: str | None) -> Point:
    """The point whose name begins so, or (None) the last."""
    known = names(destination)
    if not known:
        raise BackupError(f"There is no backup at {destination.shown}.")
    if wanted is None:
        return read(destination, Point, POINTS, known[-1])
    fitting = [name for name in known if name == wanted] or [
        name for name in known if name.startswith(wanted)
    ]
    if not fitting:
        raise BackupError(
            f"There is no point {wanted!r} at {destination.shown}; `stafeta backup --list {destination.shown}` names "
            "those that there are."
        )
    if len(fitting) > 1:
        raise BackupError(f"{wanted!r} may be {fitting[0]} or {fitting[1]}: write more of it.")
    return read(destination, Point, POINTS, fitting[0])


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
