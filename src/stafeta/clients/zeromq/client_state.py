"""What a client must remember to continue exactly once: its identity, its outbox, and how far it has read.

It is one SQLite file in a folder of the client's own, or in memory where there is no folder. What must be on disk
before the client goes on is committed and synced; what only saves work (a put that was answered) waits for the next
commit, for if it is lost the broker recognises the repetition.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stafeta.clients.zeromq.request_channel import Dialogue
from stafeta.clients.zeromq.requests import Entry, PublishBatch
from stafeta.errors import StoreError

VERSION = 2
_LOCK_PAUSE = 0.02
# base: messages counted before the broker's count began anew. taken: the last sequence given to a message.
_SCHEMA = """
    BEGIN;
    CREATE TABLE client (identity TEXT NOT NULL);
    INSERT INTO client VALUES ('{identity}');
    CREATE TABLE topics (topic TEXT PRIMARY KEY, base INTEGER NOT NULL, taken INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE outbox (
        number INTEGER PRIMARY KEY, topic TEXT NOT NULL, sequence INTEGER NOT NULL, length INTEGER NOT NULL,
        kind TEXT NOT NULL, encoding TEXT NOT NULL, publications BLOB NOT NULL);
    CREATE INDEX outbox_by_topic ON outbox (topic, sequence);
    CREATE TABLE positions (
        subscription TEXT PRIMARY KEY, id INTEGER NOT NULL, mark TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
    CREATE TABLE ahead (subscription TEXT, id INTEGER, PRIMARY KEY (subscription, id)) WITHOUT ROWID;
    PRAGMA user_version = {version};
    COMMIT;
"""
_FROM_1 = """
    BEGIN;
    ALTER TABLE positions ADD COLUMN mark TEXT NOT NULL DEFAULT '';
    PRAGMA user_version = 2;
    COMMIT;
"""


class FolderError(StoreError):
    """The folder of a client cannot be used."""


class ClientState:
    """The memory of one client. Made by `open_client_state`."""

    def __init__(self, database: sqlite3.Connection, path: str, lock: int | None, name: str) -> None:
        self._database = database
        self._path = path
        self._lock = lock
        self._name = name
        self.identity = ""
        self.last_number = 0
        with self._explained():
            self._prepare()

    def close(self) -> None:
        """Writes what has waited, and lets another process have the folder."""
        try:
            with self._explained():
                self._commit()
        finally:
            self._database.close()
            self.let_go()

    def let_go(self) -> None:
        """Lets another process have the folder; in one that was forked, as soon as the parent does."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def change_identity(self) -> None:
        """Becomes another client: one for which the broker counts from 1, and that has no subscription yet. What it
        has read stays, so that it notices that the broker has lost that too."""
        with self._durably() as database:
            for (topic,) in database.execute("SELECT topic FROM topics").fetchall():
                self._shift(topic, self._first_waiting(topic) - 1)
            database.execute("UPDATE client SET identity = ?", (_new_identity(self._name),))
        self._read_identity()

    def add(self, topic: str, batch: PublishBatch) -> None:
        """Puts a batch at the end of the outbox."""
        with self._durably() as database:
            sequence = self._taken(topic) + 1
            # One that was interrupted may have got further than is known here.
            self.last_number = max(self.last_number, self._largest())
            database.execute(
                "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.last_number + 1, topic, sequence, *batch),
            )
            database.execute(
                "INSERT INTO topics VALUES (?, 0, ?) ON CONFLICT DO UPDATE SET taken = excluded.taken",
                (topic, sequence + batch.length - 1),
            )
        self.last_number += 1

    def after(self, number: int) -> Entry | None:
        """The first entry of the outbox after this number."""
        with self._explained():
            row = self._database.execute(
                "SELECT * FROM outbox WHERE number > ? ORDER BY number LIMIT 1", (number,)
            ).fetchone()
        if row is None:
            return None
        number, topic, sequence, *batch = row
        return Entry(number, topic, sequence, PublishBatch(*batch))

    def done(self, entry: Entry) -> None:
        """Takes an entry that was answered out of the outbox, on disk with the next commit."""
        with self._explained():
            self._begin()
            self._remove(entry)

    def drop(self, entry: Entry) -> None:
        """Takes a refused entry out of the outbox; those of its topic after it move up."""
        with self._durably() as database:
            self._remove(entry)
            length = entry.batch.length
            self._renumber(entry.topic, length)
            database.execute("UPDATE topics SET taken = taken - ? WHERE topic = ?", (length, entry.topic))

    def drop_from(self, entry: Entry) -> None:
        """Takes a refused entry and all of its topic after it out of the outbox."""
        with self._durably() as database:
            database.execute(
                "DELETE FROM outbox WHERE topic = ? AND sequence >= ?", (entry.topic, entry.sequence)
            )
            database.execute("UPDATE topics SET taken = ? WHERE topic = ?", (entry.sequence - 1, entry.topic))

    def recount(self, topic: str, expected: int) -> None:
        """Numbers what waits for a topic from `expected` on."""
        with self._durably():
            self._shift(topic, self._first_waiting(topic) - expected)

    def count(self, topic: str) -> int:
        """How many messages of the topic have been taken into the outbox so far."""
        with self._explained():
            row = self._database.execute(
                "SELECT base + taken FROM topics WHERE topic = ?", (topic,)
            ).fetchone()
        return row[0] if row else 0

    def acknowledged(self, subscription: str) -> tuple[int, set[int], str]:
        """The id up to which everything of a subscription is acknowledged, those that are after it, and the mark of the
        log that these ids are of."""
        with self._explained():
            row = self._database.execute(
                "SELECT id, mark FROM positions WHERE subscription = ?", (subscription,)
            ).fetchone()
            ahead = self._database.execute(
                "SELECT id FROM ahead WHERE subscription = ?", (subscription,)
            ).fetchall()
        id_, mark = row or (0, "")
        return id_, {one for (one,) in ahead}, mark

    def acknowledge(self, subscription: str, position: int, mark: str, ahead: Iterable[int] = ()) -> None:
        """Acknowledges everything up to a position, and these ids after it, of the log with this mark."""
        with self._durably() as database:
            database.execute(
                "INSERT INTO positions VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET id = excluded.id, mark = excluded.mark",
                (subscription, position, mark),
            )
            database.execute("DELETE FROM ahead WHERE subscription = ? AND id <= ?", (subscription, position))
            database.executemany(
                "INSERT OR IGNORE INTO ahead VALUES (?, ?)", ((subscription, id_) for id_ in ahead)
            )

    def forget(self, subscription: str) -> None:
        """Forgets what has been acknowledged of a subscription."""
        with self._durably() as database:
            database.execute("DELETE FROM positions WHERE subscription = ?", (subscription,))
            database.execute("DELETE FROM ahead WHERE subscription = ?", (subscription,))

    def _taken(self, topic: str) -> int:
        row = self._database.execute("SELECT taken FROM topics WHERE topic = ?", (topic,)).fetchone()
        return row[0] if row else 0

    def _first_waiting(self, topic: str) -> int:
        row = self._database.execute("SELECT min(sequence) FROM outbox WHERE topic = ?", (topic,)).fetchone()
        return self._taken(topic) + 1 if row[0] is None else int(row[0])

    def _shift(self, topic: str, by: int) -> None:
        self._renumber(topic, by)
        self._database.execute(
            "UPDATE topics SET base = base + ?, taken = taken - ? WHERE topic = ?", (by, by, topic)
        )

    def _renumber(self, topic: str, by: int) -> None:
        self._database.execute("UPDATE outbox SET sequence = sequence - ? WHERE topic = ?", (by, topic))

    def _remove(self, entry: Entry) -> None:
        self._database.execute("DELETE FROM outbox WHERE number = ?", (entry.number,))

    def _prepare(self) -> None:
        database = self._database
        # The lock keeps other processes away, so SQLite need not share its memory of the log with any.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            identity = _new_identity(self._name).replace("'", "''")
            database.executescript(_SCHEMA.format(version=VERSION, identity=identity))
        elif version == 1:
            database.executescript(_FROM_1)
        elif version != VERSION:
            raise FolderError(
                f"{self._path} was written by a newer version of Stafeta (format {version}, this one knows "
                f"{VERSION}). Use that version, or another folder."
            )
        self._read_identity()
        self.last_number = self._largest()

    def _largest(self) -> int:
        return int(self._database.execute("SELECT coalesce(max(number), 0) FROM outbox").fetchone()[0])

    def _read_identity(self) -> None:
        self.identity = self._database.execute("SELECT identity FROM client").fetchone()[0]

    @contextmanager
    def _durably(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._begin()
            try:
                yield self._database
                self._commit()
            except (
                BaseException
            ):  # Ctrl-C may come between two statements, and half of a change must not stay
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _begin(self) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._database.rollback()
            raise _unusable(self._path, error) from error


def open_client_state(
    folder: str | os.PathLike[str] | None, patience: float, name: str = ""
) -> Dialogue[ClientState]:
    """Opens the state of a folder, which is made where it does not exist; None is one in memory.

    Where another process uses the folder, waits for `patience` seconds. A new identity begins with the name.
    """
    if folder is None:
        return _opened(":memory:", None, name)
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderError(f"The client's folder {folder} cannot be used: {error.strerror}.") from error
    try:
        yield from _locked(lock, folder, patience)
        return _opened(str(folder / "client.db"), lock, name)
    except BaseException:
        os.close(lock)
        raise


def _opened(path: str, lock: int | None, name: str) -> ClientState:
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    try:
        return ClientState(database, path, lock, name)
    except BaseException:
        database.close()
        raise


def _new_identity(name: str) -> str:
    # Drawn, not asked of the broker: a broker that lost its data would give the same number to somebody else, whose
    # messages and ours it could then not tell apart.
    return f"{name}-{os.urandom(16).hex()}" if name else os.urandom(16).hex()


def _unusable(path: str, error: sqlite3.Error) -> FolderError:
    return FolderError(
        f"The client's memory in {path} cannot be used: {error}. Is the disk full, or the folder read-only?"
    )


def _locked(lock: int, folder: Path, patience: float) -> Dialogue[None]:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise FolderError(
                    f"Another process has been using the client's folder {folder} for {patience:g} s. "
                    "Wait for it, or use another folder: each process needs its own."
                ) from None
        else:
            return
        yield _LOCK_PAUSE
