"""The data folder: its lock, its database connections, and what their errors mean."""

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
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
from stafeta.store.sqlite.seals import seal, text
from stafeta.store.sqlite.wal import PAGE, QUARANTINE, WriteAheadLog, recovered

log = logging.getLogger("stafeta.store")

DATABASE = "stafeta.db"
REPAIRED = f"{DATABASE}.repaired"  # a new database that is to replace it
BUSY_WAIT = 10_000  # milliseconds that a connection waits for others
RESTORING = "restoring"  # a file that is there until a backup is restored to its end


def lock(folder: Path) -> int:
    """Make the folder if need be, and take it for this process. Returns the file descriptor that holds the lock."""
    try:
        _make(folder)
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
    with suppress(OSError):  # it is there; and who may not read the folder above has not made it
        sync_folder(
            folder.absolute().parent
        )  # a broker that was killed may have made it, and come no further
    try:
        os.ftruncate(held, 0)
        os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # The number only makes the message above friendlier; a full disk must not keep a broker from reading.
    return held


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Held while the database is opened, by one at a time: what a killed broker has left of the write-ahead log may be
    changed then. A broker that has started does not hold it. It is a lock of the folder itself, and needs no file."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(folder: Path) -> None:
    """Make a folder and those above it, so that they are there after a loss of power."""
    if folder.is_dir():
        return
    _make(folder.absolute().parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.absolute().parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_log(folder: Path) -> None:
    """Put all that was committed on the disk, also by a broker that was killed before it could."""
    with suppress(FileNotFoundError):
        log_file = os.open(folder / f"{DATABASE}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(log_file)
        finally:
            os.close(log_file)


def finish_repair(folder: Path) -> None:
    """Puts a database that a repair has made in place of the damaged one, which goes to quarantine."""
    if not (folder / REPAIRED).exists():
        return
    place = new_quarantine(folder)
    for suffix in ("-journal", "-wal", "", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(folder / f"{DATABASE}{suffix}", place / f"{DATABASE}{suffix}")
    sync_folder(place)
    sync_folder(folder)
    os.rename(folder / REPAIRED, folder / DATABASE)
    sync_folder(folder)


def new_quarantine(folder: Path) -> Path:
    """A new folder for what is set aside."""
    number = 1
    while (place := folder / QUARANTINE / f"{number:03}").exists():
        number += 1
    place.mkdir(parents=True)
    return place


def connect(
    folder: Path, *, durability: str, read_only: bool = False, name: str = DATABASE, journal: str = "WAL"
) -> sqlite3.Connection:
    return _prepared(_opened(folder / name), durability=durability, read_only=read_only, journal=journal)


def look(folder: Path) -> sqlite3.Connection:
    """A connection that leaves the files as they are. Any other, when it is the last to be closed, copies what it has
    found in the write-ahead log and deletes that, with all that it has not found."""
    return _prepared(
        _opened(folder / DATABASE, "?mode=ro"), durability="fsync", read_only=True, journal="WAL"
    )


def _opened(path: Path, mode: str = "") -> sqlite3.Connection:
    return sqlite3.connect(
        path.absolute().as_uri() + mode,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def _prepared(
    connection: sqlite3.Connection, *, durability: str, read_only: bool, journal: str
) -> sqlite3.Connection:
    connection.text_factory = text  # of what is damaged, too
    connection.create_function("seal", -1, seal, deterministic=True)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_WAIT}")
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
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}")
    return connection


def check_version(folder: Path, *, durability: str) -> None:
    """Refuse a database that is not ours to change, before anything is changed."""
    if (folder / RESTORING).exists():
        raise StoreError(
            f"A backup was being restored to {folder}, and that was not finished. Restore it again, to this folder or "
            "another."
        )
    finish_repair(folder)
    path = folder / DATABASE
    if not path.exists():
        return
    log_path = folder / f"{DATABASE}-wal"
    wal = WriteAheadLog(log_path)
    if not wal.empty and wal.mend_header():
        _replace(wal, 1)
    if wal.beheaded:
        if durability == "fsync":
            raise wal.without_header()
        log.error(
            "%s has no header, and what is in it is left out: the machine lost power, or the file is damaged; a copy "
            "of it is %s",
            log_path,
            wal.keep_copy(),
        )
    # What a broker that was killed in its first start has left of it has to be rolled back, which is a change.
    mode = "rw" if path.with_name(f"{DATABASE}-journal").exists() else "ro"
    with closing(sqlite3.connect(path.absolute().as_uri() + f"?mode={mode}", uri=True)) as connection:
        version, owner = _version(connection)
        empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        found = 0 if wal.empty else recovered(log_path)
    if owner != schema.APPLICATION_ID and not empty:
        raise StoreVersion(f"{path} is a database of another program. Choose another folder with --data.")
    if version > len(schema.MIGRATIONS):
        raise StoreVersion(
            f"The data folder {folder} was written by a newer Stafeta (its format is {version}, this program knows "
            f"{len(schema.MIGRATIONS)}). Run that version or a later one."
        )
    if not wal.empty:
        _check_log(wal, found, synced=durability == "fsync")


def _check_log(wal: WriteAheadLog, found: int, *, synced: bool) -> None:
    """Whether SQLite has found all that is in the write-ahead log; what can be put right is. Where commits were not
    `synced` one by one, any of them may be torn, and those after it are there in vain."""
    mended, broken = wal.mend_from(found)
    behind = [frame for frame in wal.frames() if frame.number > found]
    lost = [] if broken is None else [frame for frame in behind if frame.number >= broken.number]
    commits = [frame for frame in lost if frame.commits]
    if (
        len(commits) > 1 and synced
    ):  # what is no commit may be left of a broker that was killed before it was one
        raise StoreDamaged(
            f"{wal.path} is damaged at frame {lost[0].number} of {lost[-1].number}, so that what was stored after it "
            "cannot be read. Nothing was changed. Restore the folder from a copy; or, if the machine lost power while "
            "durability was os, start once with that."
        )
    if mended and any(frame.commits for frame in behind):  # else it was never committed
        _replace(wal, mended)
    if commits:
        log.error(
            "the last commits in %s are not whole and are left out (%d of them): the machine lost power while they "
            "were stored, or the file is damaged; a copy of it is %s",
            wal.path,
            len(commits),
            wal.keep_copy(),
        )
    if lost:
        wal.cut_off(lost[0])


def accept_log(folder: Path) -> bool:
    """Lets SQLite read a write-ahead log that is damaged, as it is; false where it cannot read all of it. A copy goes
    to quarantine."""
    wal = WriteAheadLog(folder / f"{DATABASE}-wal")
    if not wal.whole_header:
        wal.keep_copy()  # SQLite takes it for empty
        return False
    whole = wal.accept()
    _replace(wal, 0)
    return whole


def _replace(wal: WriteAheadLog, mended: int) -> None:
    kept = wal.keep_copy()
    wal.save()
    with suppress(FileNotFoundError):
        wal.path.with_name(f"{DATABASE}-shm").unlink()  # SQLite makes it anew from the log
    if mended:
        log.error(
            "%s had %d flipped bits, which are right again; as it was, it is in %s", wal.path, mended, kept
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
def translating_errors(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite and of files into sentences."""
    try:
        yield
    except StafetaError:
        raise
    except sqlite3.Error as error:
        raise translate(error, folder) from error
    except UnicodeDecodeError as error:  # of SQLite's own error, which shows what it does not understand
        raise _damaged(folder, error.object.decode(errors="backslashreplace")) from error
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


def _damaged(folder: Path, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"The database in {folder} is damaged ({why}). Restore the folder from a copy; or stop the broker, and "
        f"`stafeta check --repair --data {folder}` keeps what is whole."
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
            return _damaged(folder, str(error))
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"The data folder {folder} gave an error: {error}. Whether this was stored is not known; send it "
                "again. What has a number is stored once all the same."
            )
        case _:
            return StoreError(f"The data folder {folder} gave an error: {error}. Nothing was stored.")
