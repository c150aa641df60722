"""What a loss of power may leave of files, as POSIX has it.

1. What a file held when it was last synced is there. Of what was written to it since, any sector may be there or not:
   it holds what it held at some moment since then. A truncation may be there or not.
2. Names are the folder's: one that was made or removed since the folder was last synced may be there or not, whatever
   became of the file itself.
3. Nothing is assumed of the order in which anything reaches the disk, but for 1 and 2.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import Literal, NamedTuple, TypeAlias

SECTOR = 512
FOLDER = -1  # in place of a file's number

Way: TypeAlias = Literal["synced", "all", "prefixes", "torn"]
WAYS: tuple[Way, ...] = ("synced", "all", "prefixes", "torn")


class Named(NamedTuple):
    """A name stands for this file from now on; None: for nothing."""

    path: str
    file: int | None


class Wrote(NamedTuple):
    file: int
    offset: int
    data: bytes


class Truncated(NamedTuple):
    file: int
    size: int


class SyncBegan(NamedTuple):
    file: int
    sync: int


class Synced(NamedTuple):
    """What was written before that sync began is on the disk."""

    file: int
    sync: int


class FolderSynced(NamedTuple):
    path: str


class Mark(NamedTuple):
    """Not a change: what whoever makes the changes has to say of them."""

    what: str
    number: int


Event: TypeAlias = Named | Wrote | Truncated | SyncBegan | Synced | FolderSynced | Mark
Change: TypeAlias = Wrote | Truncated


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)  # as programs see it
    synced: bytes = b""  # as the disk has it
    changes: list[Change] = field(default_factory=list)  # since then
    syncing: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # content and number of changes

    def do(self, event: Change | SyncBegan | Synced) -> None:
        match event:
            case Wrote() | Truncated():
                apply(self.content, event)
                self.changes.append(event)
            case SyncBegan():
                self.syncing[event.sync] = bytes(self.content), len(self.changes)
            case Synced():
                content, count = self.syncing.pop(event.sync)
                if count >= 0:
                    self.synced = content
                    del self.changes[:count]
                    self.syncing = {sync: (one, at - count) for sync, (one, at) in self.syncing.items()}


class Disk:
    """Files and folders below one folder, and what of them is on the disk for sure."""

    def __init__(self) -> None:
        self.files: defaultdict[int, File] = defaultdict(File)
        self.names: dict[str, int] = {}  # as programs see them
        self.synced_names: dict[str, int] = {}
        self.renamed: dict[str, list[int | None]] = {}  # since then

    def do(self, event: Event) -> None:
        match event:
            case Named(path, file):
                _name(self.names, path, file)
                self.renamed.setdefault(path, []).append(file)
            case FolderSynced(folder):
                for path in [path for path in self.renamed if parent(path) == folder]:
                    _name(self.synced_names, path, self.renamed.pop(path)[-1])
            case Mark():
                pass
            case _:
                self.files[event.file].do(event)

    def left(self, way: Way, random: Random) -> dict[str, bytes | None]:
        """By path what a loss of power leaves; None is a folder."""
        names = dict(self.synced_names)
        likely = random.choice((0.0, 0.5, 1.0))
        for path, files in self.renamed.items():
            kept = {"synced": 0, "all": len(files)}.get(way, _kept(len(files), likely, random))
            if kept:
                _name(names, path, files[kept - 1])
        return {
            path: None if file == FOLDER else content(self.files[file], way, random)
            for path, file in sorted(names.items())
            if all(names.get(str(above)) == FOLDER for above in PurePosixPath(path).parents[:-1])
        }


def _name(names: dict[str, int], path: str, file: int | None) -> None:
    if file is None:
        names.pop(path, None)
    else:
        names[path] = file


def parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _kept(count: int, likely: float, random: Random) -> int:
    return count if random.random() < likely else random.randint(0, count)


def content(file: File, way: Way, random: Random) -> bytes:
    match way:
        case "synced":
            return file.synced
        case "all":
            return bytes(file.content)
        case "prefixes":
            return _prefix(file, random)
        case "torn":
            return _torn(file, random)


def _prefix(file: File, random: Random) -> bytes:
    found = bytearray(file.synced)
    for change in file.changes[: random.randint(0, len(file.changes))]:
        apply(found, change)
    return bytes(found)


def _torn(file: File, random: Random) -> bytes:
    found = bytearray(file.synced)
    likely = random.choice((0.0, 0.5, 0.9, 0.99, 1.0))
    reached: dict[int, int] = {}  # by sector, up to which change it is there
    end: int | None = None  # what lies behind belongs to a file that was truncated, and it was not
    for at, change in enumerate(file.changes):
        if isinstance(change, Truncated):
            if end is not None:
                continue
            if change.size >= len(found) or random.random() < 0.5:
                apply(found, change)
            else:
                end = change.size
            continue
        for piece in sectors(change):
            if end is not None and piece.offset + len(piece.data) > end:
                continue
            sector = piece.offset // SECTOR
            if sector not in reached:
                reached[sector] = _kept(len(file.changes), likely, random)
            if at < reached[sector]:
                apply(found, piece)
    if end is None and len(found) < len(file.content) and random.random() < 0.5:
        apply(found, Truncated(0, len(file.content)))  # its length is there, and what it holds is not
    return bytes(found)


def sectors(change: Wrote) -> Iterator[Wrote]:
    """What is written to each sector: it is there whole or not at all."""
    at = change.offset
    end = change.offset + len(change.data)
    while at < end:
        stop = min(end, at - at % SECTOR + SECTOR)
        yield Wrote(change.file, at, change.data[at - change.offset : stop - change.offset])
        at = stop


def apply(found: bytearray, change: Change) -> None:
    if isinstance(change, Truncated):
        del found[change.size :]
        found.extend(bytes(change.size - len(found)))
        return
    found.extend(bytes(max(change.offset - len(found), 0)))
    found[change.offset : change.offset + len(change.data)] = change.data


def lay(state: dict[str, bytes | None], root: Path) -> None:
    """Make these files and folders below a folder that is there."""
    for path, data in state.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)


def found_on_disk(state: dict[str, bytes | None]) -> list[Event]:
    """A record that comes to these files, all of them synced."""
    events: list[Event] = []
    for number, (path, data) in enumerate(state.items(), 1):
        events.append(Named(path, FOLDER if data is None else number))
        events.append(FolderSynced(parent(path)))
        if data is not None:
            events += [Wrote(number, 0, data), SyncBegan(number, number), Synced(number, number)]
    return events


def disk_after(events: Iterable[Event]) -> Disk:
    disk = Disk()
    for event in events:
        disk.do(event)
    return disk
