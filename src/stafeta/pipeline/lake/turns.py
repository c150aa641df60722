"""Turns: one at a time changes a table, of all processes on a machine.

The catalog refuses who comes second, and he would have to begin again: with two that never stop, one gets nowhere. The
kernel's lock of a file gives them turns, and is free when its holder dies. Where the table is not in a folder of this
machine, the catalog's refusals are all there is.
"""

import fcntl
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from stafeta.errors import StoreConflict

FOLDER: Final = "upkeep"  # of a table; nothing in it is part of the table
COMMIT: Final = "commit"
MERGE: Final = "merge"
PATIENCE: Final = 120.0  # seconds
_REST: Final = 0.01
_elsewhere: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
_held = threading.local()  # `turns`: those that the thread has


@contextmanager
def turn(location: str, what: str = COMMIT) -> Iterator[None]:
    """Waits until it is one's turn to commit to, or to merge files of, the table at a URL. A thread that has the turn
    has it until it has left the outermost of these."""
    until = time.monotonic() + PATIENCE
    held: set[tuple[str, str]] = _held.__dict__.setdefault("turns", set())
    if (location, what) in held:
        yield
        return
    while True:
        with turn_if_free(location, what) as mine:
            if mine:
                held.add((location, what))
                try:
                    yield
                finally:
                    held.discard((location, what))
                return
        if time.monotonic() > until:
            raise StoreConflict(
                f"{location}: another process has been at its {what} for {PATIENCE:.0f} s. If it is stuck, end it."
            )
        time.sleep(_REST)


@contextmanager
def turn_if_free(location: str, what: str) -> Iterator[bool]:
    """Takes a turn if nobody else has it; says whether."""
    if not location.startswith("file://"):
        lock = _elsewhere[location, what]
        mine = lock.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                lock.release()
        return
    folder = f"{location.removeprefix('file://')}/{FOLDER}"
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(f"{folder}/{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        mine = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        yield mine
    finally:
        os.close(descriptor)
