"""One backup at a time: a note at the destination says that one is being made.

Whoever comes writes a note, and then looks whether there is another one: of two that come together at least one sees
the other, and withdraws. A note that is not renewed for two minutes, or whose process has ended on this machine, is
that of a backup that was killed; what it has finished is taken over.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from stafeta.backup.destination import Destination
from stafeta.backup.points import LEASE, NOTES, Note, Pack, Segment, names, read, save
from stafeta.errors import BackupError

BEAT = LEASE / 6


class Lease:
    def __init__(self, destination: Destination, name: str) -> None:
        self._destination = destination
        self.note = Note(name, socket.gethostname(), os.getpid(), time.time())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="backup-lease", daemon=True)

    def __enter__(self) -> Self:
        self._save()
        try:
            self._take_over()
        except BaseException:
            self._remove(self.note.name)
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if kind is not None:
            self.note.beat = 0  # the next one uses what is there
            with suppress(BackupError):
                save(self._destination, NOTES, self.note)
                return
        with suppress(BackupError):  # also where there is no room to say so
            self._remove(self.note.name)

    def add(self, one: Pack | Segment) -> None:
        """A file is finished."""
        (self.note.packs if isinstance(one, Pack) else self.note.segments).append(one)  # type: ignore[arg-type]
        self._save()

    def check(self) -> None:
        """Raises where another backup has taken over: this one was held up for longer than its note counts."""
        if self._destination.size(f"{NOTES}/{self.note.name}.json") is None:
            raise BackupError(
                f"This backup was held up for so long that another one was begun at {self._destination.shown}. Make it "
                "again."
            )

    def _take_over(self) -> None:
        others = [name for name in names(self._destination, NOTES) if name != self.note.name]
        left: list[Note] = []
        for name in others:
            with suppress(BackupError):  # it was cut off, or has ended meanwhile
                left.append(read(self._destination, Note, NOTES, name))
        for one in left:
            if one.alive:
                raise BackupError(
                    f"Another backup to {self._destination.shown} is being made, by process {one.process} on "
                    f"{one.host}. Wait for its end; one that was killed is forgotten after {LEASE:g} seconds."
                )
            self.note.packs += one.packs
            self.note.segments += one.segments
        if others:
            self._save()
        for name in others:
            self._remove(name)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(BackupError):  # whoever writes a file gets the error
                self.check()
                self._save()

    def _save(self) -> None:
        with self._lock:
            self.note.beat = time.time()
            save(self._destination, NOTES, self.note)

    def _remove(self, name: str) -> None:
        self._destination.remove(f"{NOTES}/{name}.json")
