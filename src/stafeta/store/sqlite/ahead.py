"""What is large is written before its commit: the commit then only says where it lies, and nobody waits behind it.

1. A body goes into a segment and is synced, by a thread of its own, beside the commits of others. Bodies that wait
   share a sync.
2. The database learns of it by the commit, as always, and so later. Until then the segment is held.
3. Where it cannot be written nothing is said here: the commit tries again, and says what is wrong.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from isal.isal_zlib import crc32

from stafeta.columns import ColumnBatch
from stafeta.store.blocks import encode_columns
from stafeta.store.sqlite.segments import BodyLocation, Hold, Segments
from stafeta.store.sqlite.writer import parts

log = logging.getLogger("stafeta.store")

TOGETHER = 4 << 20  # bytes that share a sync, or a few more


class Written(NamedTuple):
    """A body that lies in its segment."""

    place: BodyLocation
    checksum: int
    hold: Hold | None


class _Job(NamedTuple):
    batch: ColumnBatch
    bodies: list[Any]
    checksums: list[int]
    done: Callable[[], None]

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies))


class AheadWriter:
    def __init__(self, segments: Segments) -> None:
        """The segments are for its thread alone."""
        self._segments = segments
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False

    def write(self, batch: ColumnBatch, done: Callable[[], None]) -> bool:
        """Called by the thread that has the batch; false where it is for its commit to write it. Else `done` is called
        when it is written, or could not be."""
        if not self._segments.is_worth(batch.size):
            return False
        bodies = [encode_columns(part)[1] for part in parts(batch)]
        job = _Job(batch, bodies, [crc32(body) for body in bodies], done)
        with self._starting:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store-ahead", daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return True

    def close(self) -> None:
        """Finish what was taken, and take nothing more."""
        with self._starting:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()
        self._segments.close()

    def _run(self) -> None:
        more = True
        while more:
            jobs: list[_Job] = []
            size = 0
            while size < TOGETHER and (not jobs or not self._jobs.empty()):
                job = self._jobs.get()
                if job is None:
                    more = False
                    break
                jobs.append(job)
                size += job.size
            self._write(jobs)

    def _write(self, jobs: list[_Job]) -> None:
        try:
            places = iter(self._segments.put([body for job in jobs for body in job.bodies]))
            for job in jobs:
                job.batch.ahead = [Written(next(places), one, self._segments.hold) for one in job.checksums]
        except Exception as error:  # noqa: BLE001 - its commit meets the same, and says so
            log.debug("nothing could be written ahead: %s", error)
        for job in jobs:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                job.done()
