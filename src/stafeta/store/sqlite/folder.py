"""The data folder: its lock, its database connections, and what their errors mean."""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stafeta.errors import (
    StafetaError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreVersion,
)
from stafeta.store.sqlite import schema

DATABASE = "stafeta.db"
PAGE = 4096


def lock(folder: Path) -> int:
    """Make the folder if need be, and take it for this process. Returns the file descriptor that holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreReadOnly(
            f"The data folder {folder} cannot be used: {error.strerror}. Choose another with --data, or mend this one."
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(held, 32).decode(errors="replace").strip() or "unknown"
        os.close(held)
        raise StoreLocked(
            f"The data folder {folder} is in use by another broker (process {owner}). Stop that one, or choose another "
            "folder with --data."
        ) from None
    try:
        os.ftruncate(held, 0)
        os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # The number only makes the message above friendlier; a full disk must not keep a broker from reading.
    return held


def connect(folder: Path, *, durability: str, read_only: bool = False) -> sqlite3.Connection:
    path = folder / DATABASE
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute("PRAGMA busy_timeout = 10000")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA secure_delete = OFF")  # some builds overwrite what is deleted, through the log
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return connection
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    if (
        connection.execute("PRAGMA page_count").fetchone()[0] == 0
    ):  # else it would write, which a full disk refuses
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}")
    return connection


def check_version(folder: Path) -> None:
    """Refuse a database that is not ours to change, before anything is changed."""
    path = folder / DATABASE
    if not path.exists():
        return
    with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True)) as connection:
        version, owner = _version(connection)
        empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if owner != schema.APPLICATION_ID and not empty:
        raise StoreVersion(f"{path} is a database of another program. Choose another folder with --data.")
    if version > len(schema.MIGRATIONS):
        raise StoreVersion(
            f"The data folder {folder} was written by a newer Stafeta (its format is {version}, this program knows "
            f"{len(schema.MIGRATIONS)}). Run that version or a later one."
        )


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    return version, owner


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to this program's version."""
    version, _ = _version(connection)
    if version == len(schema.MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    for script in schema.MIGRATIONS[version:]:
        for statement in statements(script):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
    connection.execute("COMMIT")


def statements(script: str) -> Iterator[str]:
    # `executescript` would commit first, and a migration is one transaction.
    pending = ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite and of files into sentences."""
    try:
        yield
    except StafetaError:
        raise
    except sqlite3.Error as error:
        raise translate(error, folder) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(folder) from error
        raise StoreError(
            f"The data folder {folder} gave an error: {error.strerror}. Nothing was stored."
        ) from error


def _full(folder: Path) -> StoreFull:
    return StoreFull(
        f"No room is left for the data folder {folder}. Nothing was stored; free some space and send again."
    )


def translate(error: sqlite3.Error, folder: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) or 0
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _full(folder)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreReadOnly(
                f"The data folder {folder} cannot be written ({error}). Nothing was stored; make it writable, or "
                "choose another with --data."
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreDamaged(
                f"The database in {folder} is damaged ({error}). Restore the folder from a copy; `sqlite3 "
                f"{DATABASE} .recover` may save what is left."
            )
        case _:
            return StoreError(f"The data folder {folder} gave an error: {error}. Nothing was stored.")
