"""What is large is written before its commit: the commit then only says where it lies, and nobody waits behind it.

1. A body goes into a segment and is synced, beside the commits of others, by one of two threads: one writes while the
   other one waits for the disk. Each has a segment of its own. Bodies that wait share a sync.
2. The database learns of it by the commit, as always, and so later. Until then the segment is held.
3. Where it cannot be written nothing is said here: the commit tries again, and says what is wrong.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
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
    def __init__(self, segments: Sequence[Segments]) -> None:
        """Each of these is for one of its threads alone."""
        self._segments = segments
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._closed = False

    def write(self, batch: ColumnBatch, done: Callable[[], None]) -> bool:
        """Called by the thread that has the batch; false where it is for its commit to write it. Else `done` is called
        when it is written, or could not be."""
        if not self._segments[0].is_worth(batch.size):
            return False
        bodies = [encode_columns(part)[1] for part in parts(batch)]
        job = _Job(batch, bodies, [crc32(body) for body in bodies], done)
        with self._starting:
            if self._closed:
                return False
            try:
                for one in self._segments[len(self._threads) :]:
                    thread = threading.Thread(target=self._run, args=(one,), name="store-ahead", daemon=True)
                    thread.start()
                    self._threads.append(thread)
            except RuntimeError as error:  # the system allows no more of them
                log.debug("there is no thread to write ahead: %s", error)
                if not self._threads:
                    return False
            self._jobs.put(job)
        return True

    def close(self) -> None:
        """Finish what was taken, and take nothing more."""
        with self._starting:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        for segments in self._segments:
            segments.close()

    def _run(self, segments: Segments) -> None:
        while jobs := self._together():
            _write(segments, jobs)
            del jobs  # they are not held while it waits

    def _together(self) -> list[_Job]:
        """What is written next, with one sync; nothing at the end."""
        jobs: list[_Job] = []
        size = 0
        with suppress(Empty):
            while size < TOGETHER:
                job = self._jobs.get(block=not jobs)
                if job is None:
                    if jobs:
                        self._jobs.put(None)  # for the next turn
                    break
                jobs.append(job)
                size += job.size
        return jobs


def _write(segments: Segments, jobs: list[_Job]) -> None:
    try:
        places = iter(segments.put([body for job in jobs for body in job.bodies]))
        for job in jobs:
            job.batch.ahead = [Written(next(places), one, segments.hold) for one in job.checksums]
    except Exception as error:  # noqa: BLE001 - its commit meets the same, and says so
        log.debug("nothing could be written ahead: %s", error)
    for job in jobs:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            job.done()
