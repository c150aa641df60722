"""Micro-batches that add to a state: what rollup and alerts do with each.

1. A micro-batch is one job of Spark's, whose tasks pack what they make of messages (`reading_source`). Here that meets
   the state. One of few messages is no job: they are read and packed here, in less time than a job takes to begin,
   unless some of them are missing.
2. A micro-batch is computed once, and what comes of it is on the disk beside the checkpoint before anybody sees it.
   One that is repeated is not computed again: the same results are handed on, to whom takes them once.
3. The state stays in memory for the next micro-batch. Whoever has none reads it from the disk.
4. What was written of a batch is removed when the next is done.
5. A checkpoint that was put back from a copy, or copied and gone on with twice, has not handed on the last results that
   others have under its name: the job ends, or results would be missing there, or come twice.
"""

import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from stafeta.errors import DataLoss, Unsound
from stafeta.pipeline import checkpoint_files, spark_log
from stafeta.pipeline.jobs.batches.reading_source import ReadingStream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DONE: Final = "done.json"
FILE: Final = "file"  # which has what came of a micro-batch: one that is computed anew has another
_LAST: Final = "last"  # of the micro-batches up to this one, the last that had results
BEFORE: Final = "before"  # and the last before this one

S = TypeVar("S")
R = TypeVar("R")


class Computed(NamedTuple, Generic[S, R]):
    """What comes of a micro-batch."""

    state: S
    results: R
    notes: dict[str, Any]
    """Figures, and what else the next micro-batch has to know."""
    is_changed: bool
    """Whether state or results are others than before."""


class StatefulBatches(ABC, Generic[S, R]):
    """What is done with each micro-batch. It can be sent to other processes, which read the state from the disk."""

    job: ClassVar[str]
    counted: ClassVar[str]
    """The note that says how many results a micro-batch has."""

    def __init__(self, folder: str, log: str, stream: ReadingStream | None = None) -> None:
        """`folder` is for what is kept, `log` is Spark's checkpoint. `stream` reads micro-batches of few messages."""
        self._folder = folder
        self._stream = stream
        self._log = log
        self._state: tuple[int, S] | None = None  # after which micro-batch

    @abstractmethod
    def compute(
        self, state: S, before: Mapping[str, Any], packed: Iterable[tuple[int, bytes]], number: int
    ) -> Computed[S, R]:
        """What comes of a state, the notes beside it, and what tasks have packed, each with its time of the day. The
        state itself stays as it is."""

    @abstractmethod
    def hand_on(self, results: R, notes: Mapping[str, Any], number: int) -> None:
        """Writes results to where they are read; it may be repeated."""

    @abstractmethod
    def empty(self) -> S:
        """The state before the first micro-batch."""

    @abstractmethod
    def pack(self, state: S, results: R) -> bytes: ...

    @abstractmethod
    def unpack(self, content: bytes) -> tuple[S, R]: ...

    def __call__(self, batch: "DataFrame", number: int) -> None:
        self.take(self._packed(batch, number), number)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_state": None}

    def take(self, packed: Iterable[tuple[int, bytes]], number: int) -> None:
        """Takes what tasks have packed. Nothing is asked for it where it was computed before."""
        notes = checkpoint_files.read(f"{self._folder}/{number}", DONE)
        results: R | None = None
        if notes is None:
            notes, results = self._compute(packed, number)
        if notes[self.counted]:
            self.hand_on(self.read(number, notes)[1] if results is None else results, notes, number)
        checkpoint_files.remove(f"{self._folder}/{number - 1}")

    def has(self, number: int) -> bool:
        """Whether it is known what comes of a micro-batch."""
        return checkpoint_files.read(f"{self._folder}/{number}", DONE) is not None

    def read(self, number: int, notes: Mapping[str, Any]) -> tuple[S, R]:
        """What was written of a micro-batch: the state after it, and its results."""
        content = checkpoint_files.content(f"{self._folder}/{number}", notes[FILE])
        known = notes[FILE].removesuffix(".arrow").partition("-")[2]  # those of earlier versions have none
        if content is None or (known and known != _checksum(content)):
            raise Unsound(
                f"The file {notes[FILE]} of micro-batch {number} is {'missing' if content is None else 'damaged'} in "
                f"{self._folder}: what is left of the checkpoint is of no use. Remove it, and {self.job} begins anew "
                "with what comes."
            )
        return self.unpack(content)

    def write(self, number: int, state: S, results: R, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Writes what comes of a micro-batch; returns the notes that lead to it."""
        content = self.pack(state, results)
        name = f"{uuid.uuid4().hex}-{_checksum(content)}.arrow"
        checkpoint_files.write_content(f"{self._folder}/{number}", name, content)
        return self._note(number, name, notes)

    def _packed(self, batch: "DataFrame", number: int) -> Iterator[tuple[int, bytes]]:
        """What is made of the messages of a micro-batch, once it is asked for: by tasks, if there are many."""
        if spark_log.is_empty(self._log, number):
            return
        few = self._few(number)
        # As rows, the bytes would be pickled, which takes several times as long.
        for made in [batch.toArrow()] if few is None else few:
            yield from ((row["now"], row["parts"]) for row in made.to_pylist())

    def _few(self, number: int) -> "Sequence[pa.RecordBatch] | None":
        """What is made here of the messages of a micro-batch, where they are few, and all there: some may have been
        skipped, which Spark's plan knows."""
        edges = None if self._stream is None else spark_log.offsets(self._log, number)
        task = self._stream.few(*edges) if self._stream is not None and edges is not None else None
        if task is None or self._stream is None:
            return None
        try:
            return list(self._stream.made(task))
        except DataLoss:
            return None

    def _compute(self, packed: Iterable[tuple[int, bytes]], number: int) -> tuple[dict[str, Any], R]:
        before = self._before(number)
        state, results, notes, is_changed = self.compute(
            self._after(number - 1, before), before, packed, number
        )
        last = before.get(_LAST) if number else -1
        notes |= {BEFORE: last, _LAST: number if notes[self.counted] else last}
        name = None if is_changed or before.get(self.counted) else self._kept(number, before.get(FILE))
        done = self.write(number, state, results, notes) if name is None else self._note(number, name, notes)
        self._state = number, state
        return done, results

    def _note(self, number: int, name: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        done = {FILE: name, **notes}
        checkpoint_files.write(f"{self._folder}/{number}", DONE, done)
        checkpoint_files.write(self._folder, DONE, done)
        return done

    def _kept(self, number: int, file: str | None) -> str | None:
        """The file of the micro-batch before, where it can be that of this one, too: nothing has changed."""
        before, now = (f"{self._folder}/{one}" for one in (number - 1, number))
        return file if file is not None and checkpoint_files.link_content(before, file, now) else None

    def _before(self, number: int) -> dict[str, Any]:
        if number == 0:
            return {}
        known = checkpoint_files.read(f"{self._folder}/{number - 1}", DONE)
        if known is None:
            raise Unsound(
                f"What {self.job} knew after micro-batch {number - 1} is missing in {self._folder}: what is left of "
                f"the checkpoint is of no use. Remove it, and {self.job} begins anew with what comes."
            )
        return known

    def _after(self, number: int, notes: Mapping[str, Any]) -> S:
        """The state after a micro-batch."""
        if self._state is not None and self._state[0] == number:
            return self._state[1]
        return self.read(number, notes)[0] if notes else self.empty()


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def last_notes(folder: str) -> dict[str, Any]:
    """The notes of the last micro-batch; empty before the first."""
    return checkpoint_files.read(folder, DONE) or {}
