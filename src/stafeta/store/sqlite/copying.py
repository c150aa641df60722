"""A copy of what a data folder holds at one moment, made beside the broker that writes to it, and a folder made of one.

1. Blocks are only ever appended or deleted, and their numbers grow. So whatever was copied up to a number, in however
   many portions, has all up to it that are still there later. Most of them are copied before the moment.
2. The moment is one read transaction. It copies every other table, and the blocks that are left, into a database on
   this machine. The write-ahead log grows while it lasts: however slow the backup's destination is, nobody waits for it
   within the transaction.
3. A segment is only appended to: what is committed of it stays as it is. The segments that the moment names are opened
   within the transaction, and a file that is open stays, also when collection removes it. Where one is gone already,
   another moment is taken, at which nothing is in it any more. A backup that is killed leaves nothing behind.
4. The index is not copied: the headers of blocks say it all.
"""

import os
import resource
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from stafeta.errors import StoreDamaged, StoreError, StoreFull, StoreLocked
from stafeta.store.blocks import read_header
from stafeta.store.sqlite import schema, segments
from stafeta.store.sqlite.folder import (
    DATABASE,
    check_version,
    connect,
    lock,
    look,
    migrate,
    opening,
    translating_errors,
)
from stafeta.store.sqlite.reader import load

BLOCK_ROW = "SELECT id, header, body, checksum, segment FROM block WHERE id > ? AND id <= ? ORDER BY id"
PUT_BLOCK = "INSERT OR IGNORE INTO block (id, header, body, checksum, segment) VALUES (?, ?, ?, ?, ?)"
ROW = 32  # bytes that a row takes beside header and body
MOMENTS = 20  # that are tried while collection removes segments
PAUSE = 0.05  # seconds between two of them
TOGETHER = 1000  # rows that are copied with one call

BlockRow = tuple[int, bytes, bytes, int, int | None]


class Head(NamedTuple):
    """How far a log has come."""

    last_block: int
    position: int
    runs: list[tuple[int, str]]


class OpenSegment(NamedTuple):
    """A file that stays until it is closed, and how much of it is committed."""

    number: int
    file: int
    length: int
    modified: int  # nanoseconds


class Moment(NamedTuple):
    head: Head
    time: int  # microseconds
    topics: int
    segments: dict[int, OpenSegment]


class FolderReader:
    """A data folder, whether or not a broker has it open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if not (folder / DATABASE).exists():
            raise StoreError(f"{folder} is not a data folder: it has no {DATABASE}. Name one with --data.")
        with translating_errors(folder), opening(folder):
            try:
                held: int | None = lock(folder)
            except StoreLocked:
                held = None  # by a broker that has started: none does so meanwhile
            try:
                if held is not None:
                    check_version(folder, durability="fsync")
                self._connection = look(folder)
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
                self._connection.execute("SELECT count(*) FROM meta").fetchone()
            finally:
                if held is not None:
                    os.close(held)
        if version != len(schema.MIGRATIONS):
            raise StoreError(
                f"{folder} has format {version}, and this program copies {len(schema.MIGRATIONS)}: a broker that is "
                "started on it brings it there."
            )
        self._index = _file_number(folder)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with translating_errors(self._folder):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def head(self) -> Head:
        with self._reading():
            return self._head()

    def _head(self) -> Head:
        meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        position = meta.get("position", 1)
        for id_, header in self._connection.execute(schema.HEADERS_AFTER, (meta.get("checkpoint", 0),)):
            position = max(position, self._last_position(id_, header) + 1)
        (last,) = self._connection.execute(schema.LAST_BLOCK).fetchone()
        runs = [(start, id_) for start, id_, *_ in self._connection.execute(schema.ROWS["run"])]
        return Head(last, position, runs)

    def _last_position(self, id_: int, header: bytes) -> int:
        said = read_header(id_, header)
        first = said["constants"].get("position")
        if isinstance(first, int):
            return first + int(said["rows"]) - 1
        row = self._connection.execute(schema.GET_BLOCK, (id_,)).fetchone()
        return load(self._folder, id_, *row)[0].last_position

    def blocks(self, after: int, last: int, size: int) -> tuple[list[BlockRow], int]:
        """Blocks from the one behind `after` up to `last`, as many as have so many bytes, and how many they have."""
        rows: list[BlockRow] = []
        total = 0
        with translating_errors(self._folder), closing(self._connection.cursor()) as cursor:
            for row in cursor.execute(BLOCK_ROW, (after, last)):
                rows.append(row)
                total += len(row[1]) + len(row[2]) + ROW
                if total >= size:
                    break
        return rows, total

    def count(self, first: int, last: int, most: int) -> int:
        """How many blocks there are of these numbers; `most` where there are more."""
        with translating_errors(self._folder):
            found = self._connection.execute(
                "SELECT count(*) FROM (SELECT 1 FROM block WHERE id BETWEEN ? AND ? LIMIT ?)",
                (first, last, most),
            )
            return int(found.fetchone()[0])

    def take(
        self,
        path: Path,
        missing: Callable[[Head], Sequence[tuple[int, int]]],
        known: Callable[[int, int, int], bool],
    ) -> Moment:
        """A moment: all but the index, and of blocks those that are `missing` elsewhere, into a new database at `path`.
        `missing` gives ranges of their numbers, each after the first up to and with the second. Of segments that are
        `known` by number, length and time the file is closed again."""
        for attempt in range(MOMENTS):
            path.unlink(missing_ok=True)
            with self._reading():
                # The first statement begins the transaction that all others see.
                head = self._head()
                now = time.time_ns() // 1000
                try:
                    opened = self._open_segments(known)
                except FileNotFoundError as error:
                    gone = str(error.filename)
                else:
                    try:
                        topics = self._copy(path, missing(head))
                        self._check_index()
                    except BaseException:
                        close_segments(opened.values())
                        raise
                    return Moment(head, now, topics, opened)
            time.sleep(PAUSE * (attempt + 1))
        raise StoreDamaged(
            f"{gone} is missing, and messages lie in it. `stafeta check --data {self._folder}`, while the broker is "
            "stopped, says which."
        )

    def _open_segments(self, known: Callable[[int, int, int], bool]) -> dict[int, OpenSegment]:
        ends: dict[int, int] = {}
        for table in ("block", "staged"):
            rows = self._connection.execute(f"SELECT segment, body FROM {table} WHERE segment IS NOT NULL")  # noqa: S608
            for segment, body in rows:
                ends[segment] = max(ends.get(segment, 0), segments.end_of(body))
        opened: dict[int, OpenSegment] = {}
        try:
            for number, end in sorted(ends.items()):
                file = os.open(segments.path_of(self._folder, number), os.O_RDONLY | os.O_CLOEXEC)
                found = os.fstat(file)
                opened[number] = OpenSegment(number, file, min(end, found.st_size), found.st_mtime_ns)
                if known(number, opened[number].length, found.st_mtime_ns):
                    os.close(file)
                    opened[number] = opened[number]._replace(file=-1)
        except BaseException:
            close_segments(opened.values())
            raise
        return opened

    def _copy(self, path: Path, missing: Sequence[tuple[int, int]]) -> int:
        """Returns how many topics there are."""
        with (
            _explaining_full(),
            closing(connect(path.parent, durability="os", name=path.name, journal="OFF")) as new,
        ):
            migrate(new)
            new.execute("BEGIN")
            for table in schema.SEALED:
                if table != "page":
                    self._copy_rows(new, table, f"SELECT * FROM {table}", ())  # noqa: S608
            for after, last in missing:
                self._copy_rows(new, "block", "SELECT * FROM block WHERE id > ? AND id <= ?", (after, last))
            new.execute("COMMIT")
            return int(new.execute("SELECT count(*) FROM topic WHERE present").fetchone()[0])

    def _copy_rows(self, new: sqlite3.Connection, table: str, select: str, bound: Sequence[int]) -> None:
        rows = self._connection.execute(select, bound)
        names = [one[0] for one in rows.description]
        put = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"  # noqa: S608
        while some := rows.fetchmany(TOGETHER):
            try:
                new.executemany(put, some)
            except UnicodeEncodeError:
                raise StoreDamaged(
                    f"A row of table {table} is damaged and cannot be copied. Stop the broker, and "
                    f"`stafeta check --repair --data {self._folder}` keeps what is whole."
                ) from None

    def _check_index(self) -> None:
        """A broker that puts a damaged write-ahead log right makes its index anew: what was read may not be of one
        moment then."""
        if _file_number(self._folder) != self._index:
            raise StoreError(
                f"The broker on {self._folder} has put a damaged write-ahead log right meanwhile. Make the backup "
                "again."
            )


@contextmanager
def _explaining_full() -> Iterator[None]:
    """Whose disk is full: not that of the data folder, of which one only reads."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        raise StoreFull(
            "No room is left for what a backup puts together on this machine, all but the messages. Name a folder with "
            "more room in the environment variable TMPDIR."
        ) from None


def close_segments(opened: Iterable[OpenSegment]) -> None:
    for one in opened:
        if one.file >= 0:
            os.close(one.file)


def _file_number(folder: Path) -> int:
    try:
        return (folder / f"{DATABASE}-shm").stat().st_ino
    except FileNotFoundError:
        return 0
