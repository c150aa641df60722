"""SQLite's own file system layer (its VFS), with someone who listens to what is written, synced, truncated and deleted.

The table of functions that SQLite calls is copied, and a few of its entries are replaced by Python's. Only files that
the listener wants are listened to; the index beside a write-ahead log (-shm) goes past all this, and is made anew after
a loss of power anyway.
"""

import ctypes
import os
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p, cast
from functools import cache
from typing import Any, Protocol

IO_ERROR = 10
CREATE = 0x4
NAME_IS_SYNCED = 0x800 | 0x4000 | 0x80000  # journals, and the write-ahead log: with the file's first sync


class Listener(Protocol):
    """What is written is told once it is; what is synced, before and after."""

    def opened(self, path: str, *, made: bool) -> int | None:
        """The file's number; None where it is of no interest."""

    def wrote(self, file: int, offset: int, data: bytes) -> None: ...

    def truncated(self, file: int, size: int) -> None: ...

    def syncing(self, file: int) -> Callable[[], None]:
        """What it returns is called when the sync is done."""

    def folder_synced(self, path: str) -> None: ...

    def removed(self, path: str) -> None: ...


class _Methods(Structure):
    _fields_ = (
        ("version", c_int),
        *((name, c_void_p) for name in ("close", "read", "write", "truncate", "sync")),
        *((f"other{number}", c_void_p) for number in range(13)),
    )


class _File(Structure):
    _fields_ = (("methods", POINTER(_Methods)),)


class _Vfs(Structure):
    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        *((f"other{number}", c_void_p) for number in range(14)),
    )


_Open = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_Delete = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_Close = ctypes.CFUNCTYPE(c_int, c_void_p)
_Write = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)


def library() -> ctypes.CDLL | None:
    """The library that Python's module uses; None where it is part of the module itself."""
    sqlite3.sqlite_version  # noqa: B018 - by now it is loaded
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libsqlite3" in line}
    except OSError:
        return None
    return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None


class _OpenFile:
    """A file that SQLite has open."""

    def __init__(self, number: int, path: str, methods: _Methods, *, new_name: bool) -> None:
        self.number = number
        self.path = path
        self.methods = methods
        self.new_name = new_name  # its folder is synced with it


class ListeningVfs:
    """There is one, and it is never let go of: SQLite has pointers to it."""

    def __init__(self, sqlite: ctypes.CDLL) -> None:
        self._sqlite = sqlite
        sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
        sqlite.sqlite3_vfs_register.argtypes = (POINTER(_Vfs), c_int)
        sqlite.sqlite3_vfs_unregister.argtypes = (POINTER(_Vfs),)
        self._real = sqlite.sqlite3_vfs_find(None)
        self._vfs = _Vfs.from_buffer_copy(self._real.contents)
        self._listener: Listener | None = None
        self._files: dict[int, _OpenFile] = {}  # by their addresses
        self._tables: dict[
            int, tuple[_Methods, _Methods]
        ] = {}  # by the address of the real one: real and ours
        self._kept: list[Any] = []
        self._vfs.name = b"listening"
        self._vfs.next = None
        self._vfs.open = self._function(_Open, self._open)
        self._vfs.delete = self._function(_Delete, self._delete)
        self._close_address = self._function(_Close, self._close)
        self._write_address = self._function(_Write, self._write)
        self._truncate_address = self._function(_Truncate, self._truncate)
        self._sync_address = self._function(_Sync, self._sync)

    def _function(self, form: Any, call: Callable[..., int]) -> int | None:
        def safe(*arguments: Any) -> int:
            try:
                return call(*arguments)
            except BaseException:  # noqa: BLE001 - SQLite is told, in its own way
                traceback.print_exc()
                return IO_ERROR

        function = form(safe)
        self._kept.append(function)
        return cast(function, c_void_p).value

    @contextmanager
    def listened(self, listener: Listener) -> Iterator[None]:
        """What is opened meanwhile is listened to; all of it has to be closed in the end."""
        self._listener = listener
        self._sqlite.sqlite3_vfs_register(byref(self._vfs), 1)
        try:
            yield
        finally:
            self._sqlite.sqlite3_vfs_unregister(byref(self._vfs))
            self._sqlite.sqlite3_vfs_register(self._real, 1)
            self._listener = None

    def _open(self, vfs: int, name: int | None, file: int, flags: int, outcome: Any) -> int:
        # The name is passed on as a pointer: behind it SQLite has put more than the name.
        path = None if not name else os.fsdecode(ctypes.string_at(name))
        made = path is not None and bool(flags & CREATE) and not os.path.exists(path)
        real = _Open(self._real.contents.open)
        result = real(cast(self._real, c_void_p).value, name, file, flags, outcome)
        if result or path is None or self._listener is None:
            return int(result)
        number = self._listener.opened(path, made=made)
        if number is not None:
            opened = _File.from_address(file)
            real_methods, ours = self._table(opened)
            new_name = bool(flags & CREATE and flags & NAME_IS_SYNCED)
            self._files[file] = _OpenFile(number, path, real_methods, new_name=new_name)
            opened.methods = ctypes.pointer(ours)
        return int(result)

    def _table(self, opened: _File) -> tuple[_Methods, _Methods]:
        address = ctypes.addressof(opened.methods.contents)
        if address not in self._tables:
            # Older tables are shorter; what is not there is never called.
            real = opened.methods.contents
            ours = _Methods.from_buffer_copy(real)
            ours.close, ours.write = self._close_address, self._write_address
            ours.truncate, ours.sync = self._truncate_address, self._sync_address
            self._tables[address] = real, ours
        return self._tables[address]

    def _delete(self, vfs: int, name: bytes, sync: int) -> int:
        path = os.fsdecode(name)
        result = _Delete(self._real.contents.delete)(cast(self._real, c_void_p).value, name, sync)
        if not result and self._listener is not None:
            self._listener.removed(path)
            if sync & 1:
                self._listener.folder_synced(os.path.dirname(path))
        return int(result)

    def _close(self, file: int) -> int:
        opened = self._files.pop(file)
        return int(_Close(opened.methods.close)(file))

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        opened = self._files[file]
        result = _Write(opened.methods.write)(file, data, size, offset)
        if self._listener is not None:
            self._listener.wrote(opened.number, offset, ctypes.string_at(data, size))
        return int(result)

    def _truncate(self, file: int, size: int) -> int:
        opened = self._files[file]
        result = _Truncate(opened.methods.truncate)(file, size)
        if self._listener is not None:
            self._listener.truncated(opened.number, size)
        return int(result)

    def _sync(self, file: int, flags: int) -> int:
        opened = self._files[file]
        done = None if self._listener is None else self._listener.syncing(opened.number)
        result = _Sync(opened.methods.sync)(file, flags)
        if done is not None and self._listener is not None and not result:
            done()
            if opened.new_name:
                opened.new_name = False
                self._listener.folder_synced(os.path.dirname(opened.path))
        return int(result)


@cache
def listening_vfs() -> ListeningVfs | None:
    """None where SQLite cannot be listened to."""
    found = library()
    return None if found is None else ListeningVfs(found)
