"""A broker that kills itself. Run as a program by test_broker_killed.

dying_broker.py POINT MARK serve ...

is `stafeta serve ...` until a request with MARK in it has come; from then on it kills itself when it comes to POINT, a
point of `POINTS`.
"""

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from stafeta.broker import Broker
from stafeta.cli.main import main
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.server import ZeroMQDoor
from stafeta.store.sqlite import SqliteStore
from stafeta.store.sqlite.checkpoint import Checkpoint

# Where, and whether to die before it is done or after. Where nobody owns it, it is a statement of the writer's: its
# first word, or how many of the transaction went before it.
POINTS: dict[str, tuple[Any, str, bool]] = {
    "the request has come": (ZeroMQDoor, "_take", False),
    "it is carried out in memory": (actions, "act", True),
    "the store is given the group": (SqliteStore, "commit", False),
    "the transaction begins": (None, "BEGIN", False),
    "the transaction has begun": (None, "BEGIN", True),
    "the first statement is done": (None, "1", True),
    "the second statement is done": (None, "2", True),
    "the third statement is done": (None, "3", True),
    "the transaction is committed": (None, "COMMIT", False),
    "the transaction has been committed": (None, "COMMIT", True),
    "the group is visible": (Broker, "_committed", False),
    "the reply is sent": (ZeroMQDoor, "_reply", False),
    "the reply has been sent": (ZeroMQDoor, "_reply", True),
}
CHECKPOINT_POINTS: dict[str, tuple[Any, str, bool]] = {
    "a slice is written": (Checkpoint, "write_slice", False),
    "a slice has been written": (Checkpoint, "write_slice", True),
    "a slice has been committed": (Checkpoint, "wrote", False),
    "the checkpoint is finished": (Checkpoint, "finish", False),
    "the checkpoint has been written": (Checkpoint, "finish", True),
    "the checkpoint has been committed": (Checkpoint, "finished", False),
}

# The loop writes what is small itself.
WRITERS = ("store-writer", threading.main_thread().name)

armed = threading.Event()


def die() -> None:
    if armed.is_set():
        os.kill(os.getpid(), signal.SIGKILL)


def arm_with(mark: bytes) -> None:
    take = ZeroMQDoor._take

    def marked(door: ZeroMQDoor, turn: Any, connection: bytes, body: bytes) -> None:
        if mark in body:
            armed.set()
        take(door, turn, connection, body)

    setattr(ZeroMQDoor, "_take", marked)  # noqa: B010 - mypy takes an assignment for a mistake


def die_at(owner: Any, name: str, *, after: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def deadly(*arguments: Any, **options: Any) -> Any:
        if not after:
            die()
        result = original(*arguments, **options)
        if after:
            die()
        return result

    setattr(owner, name, deadly)


class Statements(sqlite3.Connection):
    """Counts the statements of each of the writer's transactions, and dies at the right one."""

    def __init__(self, *arguments: Any, deadly: str, after: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadly = deadly
        self._after = after
        self._count = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self._run(sql, lambda: super(Statements, self).execute(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return self._run(sql, lambda: super(Statements, self).executemany(sql, parameters))

    def _run(self, sql: str, statement: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        word = sql.split(maxsplit=1)[0]
        name = word if word in ("BEGIN", "COMMIT") else str(self._count)
        self._count = 1 if word == "BEGIN" else self._count + 1
        alone = word == "INSERT" and not self.in_transaction  # then it is a whole transaction
        mine = alone or name == self._deadly
        mine = mine and threading.current_thread().name in WRITERS
        if mine and not self._after:
            die()
        cursor = statement()
        if mine and self._after:
            die()
        return cursor


def prepare(point: str, mark: str) -> None:
    owner, name, after = (POINTS | CHECKPOINT_POINTS)[point]
    if owner is None:
        sqlite3.connect = partial(  # type: ignore[assignment]
            sqlite3.connect, factory=partial(Statements, deadly=name, after=after)
        )
    else:
        die_at(owner, name, after=after)
    if owner is Checkpoint:
        Checkpoint.write_slice.__defaults__ = (1,)  # one topic a slice
    arm_with(mark.encode())


if __name__ == "__main__":
    prepare(*sys.argv[1:3])
    sys.exit(main(sys.argv[3:]))
