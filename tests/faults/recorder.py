"""Records what a program does to the files below one folder, in the order in which it does it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import RLock
from typing import Any

import pytest

from tests.faults.power import (
    FOLDER,
    Disk,
    Event,
    FolderSynced,
    Mark,
    Named,
    SyncBegan,
    Synced,
    Truncated,
    Wrote,
    disk_after,
)
from tests.faults.vfs import listening_vfs

LEFT_OUT = ("-shm",)  # SQLite makes it anew
KEPT_COPIES = "quarantine"  # nobody reads them again


class Recorder:
    """Its own files and those of SQLite: what is opened while it records is to be closed before that ends."""

    def __init__(self, root: Path, before: list[Event] | None = None, disk: Disk | None = None) -> None:
        """Where a record is continued, `before` is that record, and `disk` what it came to; the files are below
        `root`."""
        self.root = str(root.resolve())
        self.events: list[Event] = list(before or ())
        self._lock = RLock()
        self._numbers = {} if disk is None else dict(disk.names)  # by path; FOLDER for folders
        self._last = max([0, *self._numbers.values(), *(disk.files if disk else ())])
        self._syncs = sum(isinstance(event, SyncBegan) for event in self.events)
        self._folders: dict[int, str] = {}  # by descriptor, their paths
        self._files: dict[int, int] = {}  # by descriptor, their numbers

    def mark(self, what: str, number: int) -> None:
        self._add(Mark(what, number))

    def _add(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    def _path(self, path: str | os.PathLike[str]) -> str | None:
        """The path below the root; None where it is elsewhere, or left out."""
        found = os.path.abspath(os.fspath(path))
        if found == self.root:
            return "."
        if not found.startswith(self.root + os.sep) or found.endswith(LEFT_OUT):
            return None
        return found[len(self.root) + 1 :]

    # --- what the listener of SQLite hears

    def opened(self, path: str, *, made: bool) -> int | None:
        name = self._path(path)
        if name is None:
            return None
        with self._lock:
            if made:
                self._last += 1
                self._numbers[name] = self._last
                self._add(Named(name, self._last))
            return self._numbers[name]

    def wrote(self, file: int, offset: int, data: bytes) -> None:
        self._add(Wrote(file, offset, data))

    def truncated(self, file: int, size: int) -> None:
        self._add(Truncated(file, size))

    def syncing(self, file: int) -> Callable[[], None]:
        with self._lock:
            self._syncs += 1
            sync = self._syncs
            self._add(SyncBegan(file, sync))
        return lambda: self._add(Synced(file, sync))

    def folder_synced(self, path: str) -> None:
        name = self._path(path)
        if name is not None:
            self._add(FolderSynced(name))

    def removed(self, path: str) -> None:
        name = self._path(path)
        if name is not None:
            with self._lock:
                self._numbers.pop(name, None)
                self._add(Named(name, None))

    # --- what the program does itself

    @contextmanager
    def recording(self) -> Iterator[None]:
        vfs = listening_vfs()
        if vfs is None:
            pytest.skip("Python's SQLite is part of its module, so that nobody can listen to what it writes")
        with pytest.MonkeyPatch.context() as patch, vfs.listened(self):
            for name, made in self._functions().items():
                patch.setattr(os, name, made(getattr(os, name)))
            yield

    def _functions(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "open": self._os_open,
            "close": self._os_close,
            "write": self._os_write,
            "pwrite": self._os_pwrite,
            "ftruncate": self._os_ftruncate,
            "fsync": self._os_sync,
            "fdatasync": self._os_sync,
            "mkdir": self._os_mkdir,
            "unlink": self._os_unlink,
            "rename": self._os_rename,
            "replace": self._os_rename,
        }

    def _os_open(self, real: Any) -> Any:
        def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            with self._lock:
                made = bool(flags & os.O_CREAT) and not os.path.exists(path)
                descriptor: int = real(path, flags, *rest, **named)
                name = self._path(path)
                if name is not None and (name == "." or self._numbers.get(name) == FOLDER):
                    self._folders[descriptor] = name
                elif name is not None:
                    number = self.opened(path, made=made)
                    assert number is not None
                    self._files[descriptor] = number
                return descriptor

        return call

    def _os_close(self, real: Any) -> Any:
        def call(descriptor: int) -> None:
            with self._lock:
                self._folders.pop(descriptor, None)
                self._files.pop(descriptor, None)
                real(descriptor)

        return call

    def _os_write(self, real: Any) -> Any:
        def call(descriptor: int, data: Any) -> int:
            if descriptor not in self._files:
                return int(real(descriptor, data))
            with self._lock:
                count = int(real(descriptor, data))
                offset = os.lseek(descriptor, 0, os.SEEK_CUR) - count
                self.wrote(self._files[descriptor], offset, bytes(memoryview(data).cast("B")[:count]))
                return count

        return call

    def _os_pwrite(self, real: Any) -> Any:
        def call(descriptor: int, data: Any, offset: int) -> int:
            with self._lock:
                count = int(real(descriptor, data, offset))
                if descriptor in self._files:
                    self.wrote(self._files[descriptor], offset, bytes(memoryview(data).cast("B")[:count]))
                return count

        return call

    def _os_ftruncate(self, real: Any) -> Any:
        def call(descriptor: int, size: int) -> None:
            with self._lock:
                real(descriptor, size)
                if descriptor in self._files:
                    self.truncated(self._files[descriptor], size)

        return call

    def _os_sync(self, real: Any) -> Any:
        def call(descriptor: int) -> None:
            file, folder = self._files.get(descriptor), self._folders.get(descriptor)
            done = None if file is None else self.syncing(file)
            real(descriptor)
            if done is not None:
                done()
            if folder is not None:
                self._add(FolderSynced(folder))

        return call

    def _os_mkdir(self, real: Any) -> Any:
        def call(path: Any, *rest: Any, **named: Any) -> None:
            with self._lock:
                real(path, *rest, **named)
                self._name(path, FOLDER)

        return call

    def _os_unlink(self, real: Any) -> Any:
        def call(path: Any, **named: Any) -> None:
            with self._lock:
                real(path, **named)
                self.removed(path)

        return call

    def _os_rename(self, real: Any) -> Any:
        def call(path: Any, to: Any, **named: Any) -> None:
            with self._lock:
                number = self._numbers.get(self._path(path) or "")
                real(path, to, **named)
                self.removed(path)
                if number is not None:
                    self._name(to, number)

        return call

    def _name(self, path: Any, number: int) -> None:
        name = self._path(path)
        if name is not None:
            self._numbers[name] = number
            self._add(Named(name, number))

    # --- whether all of it was heard

    def check(self) -> None:
        """What is recorded comes to what is there."""
        expected = disk_after(self.events).left("all", Random(0))
        found: dict[str, bytes | None] = {}
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name != KEPT_COPIES]
            for name in folders:
                found[self._path(os.path.join(folder, name)) or ""] = None
            for name in files:
                path = self._path(os.path.join(folder, name))
                if path is not None:
                    found[path] = Path(folder, name).read_bytes()
        expected = {path: data for path, data in expected.items() if KEPT_COPIES not in Path(path).parts}
        assert found.keys() == expected.keys()
        for path, data in found.items():
            assert data == expected[path], f"{path} is not what was recorded of it"
