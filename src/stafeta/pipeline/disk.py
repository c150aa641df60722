"""What has to be on the disk of this machine, and not only in the system's memory, before somebody relies on it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST: Final = 1000
_Version: TypeAlias = tuple[int, int, int]
_settled: set[tuple[Path, int]] = set()


def folder_of(url: str) -> Path | None:
    """The folder that a URL, or a path, means, if it is one of this machine's. Nothing is escaped, as in Spark."""
    if url.startswith("file:"):
        return Path("/" + url.removeprefix("file:").lstrip("/"))
    return None if len(urlsplit(url).scheme) > 1 and "://" in url else Path(url).absolute()


def location(given: str) -> str:
    """The URL that a URL, or the path of a folder, means."""
    if len(urlsplit(given).scheme) > 1:
        return given.rstrip("/")
    return f"file://{Path(given).expanduser().absolute()}"


def boot() -> str:
    """Since when the system runs: while it is the same, nothing that was written is lost."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return ""


def write(path: Path, data: bytes, draft: str) -> None:
    """Writes a file whole or not at all; when this returns, it stays."""
    os.makedirs(path.parent, exist_ok=True)
    settle(path.parent)
    other = path.with_name(draft)
    handle = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(other, path)
    except BaseException:  # on a full disk, it would be tried again and again
        with suppress(OSError):
            os.unlink(other)
        raise
    sync(path.parent)


def link(path: Path, other: Path) -> None:
    """Gives a file, which is on the disk, another name; when this returns, that stays."""
    os.makedirs(other.parent, exist_ok=True)
    settle(other.parent)
    with suppress(FileExistsError):
        os.link(path, other)
    sync(other.parent)


def settle(folder: Path) -> None:
    """The names of a folder and of those above it stay, whoever made them."""
    known = (folder, os.stat(folder).st_ino)
    if known in _settled or folder == folder.parent:
        return
    settle(folder.parent)
    with suppress(PermissionError):  # one of those that nobody here has made
        sync(folder.parent)
    if len(_settled) >= _MOST:
        _settled.clear()
    _settled.add(known)


def sync(path: Path) -> None:
    """Syncs a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Tree:
    """Files below a folder that somebody else writes: each is synced once, and again if it is another."""

    def __init__(self, folder: Path, *, deep: bool = True) -> None:
        """What is in folders of the folder belongs to it if it is `deep`."""
        self._folder = folder
        self._deep = deep
        self._known: dict[str, _Version] = {}

    def sync(self) -> None:
        """What is there now stays. What is removed meanwhile is nobody's concern."""
        if not self._folder.is_dir():
            return
        settle(self._folder)
        found: dict[str, _Version] = {}
        self._look(str(self._folder), found)
        for path, version in found.items():
            if self._known.get(path) != version:
                with suppress(FileNotFoundError):
                    sync(Path(path))
        self._known = found

    def _look(self, folder: str, found: dict[str, _Version]) -> None:
        """Files before the folder that has their names."""
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        if self._deep:
                            self._look(entry.path, found)
                    elif entry.is_file(follow_symlinks=False):
                        found[entry.path] = _version(entry.stat())
            found[folder] = _version(os.stat(folder))


def _version(stat: os.stat_result) -> _Version:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
