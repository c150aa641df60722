"""Making a backup: what is at the destination already is not copied again."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from stafeta import __version__
from stafeta.backup import points
from stafeta.backup.destination import CHUNK, Destination, StoredFile, Throttle
from stafeta.backup.lease import Lease
from stafeta.backup.points import FILES, NOTES, POINTS, Pack, Point, Segment
from stafeta.backup.pruning import keep_last
from stafeta.broker.runs import Runs
from stafeta.errors import BackupError, DataLoss
from stafeta.store.sqlite.copying import BlockRow, FolderReader, Head, Moment, OpenSegment, close_segments

PACK = 16 << 20  # bytes of blocks in a file of their own; what is left is in the point's own file
ROUNDS = 5  # of copying what came while blocks were copied
SAMPLE = 8  # packs that are looked at whether most of their blocks are gone

_COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "header": pa.binary(),
    "body": pa.binary(),
    "checksum": pa.int64(),
    "segment": pa.int64(),
}
BLOCKS = pa.schema(_COLUMNS)


@dataclass
class Made:
    """A point, and how many bytes of it were copied now."""

    point: Point
    copied: int
    points_removed: int = 0
    files_removed: int = 0


def take(
    folder: Path,
    destination: Destination,
    *,
    rate: int = 0,
    keep: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Made:
    """`rate` is how many bytes a second are copied at most, `keep` how many points stay, and `advance` is called with
    how many bytes were copied."""
    with closing(FolderReader(folder)) as reader, Lease(destination, points.new_name(_now())) as lease:
        made = _Backup(reader, destination, lease, Throttle(rate, advance)).make()
        if keep is not None:
            made.points_removed, made.files_removed = keep_last(destination, keep, lease)
        return made


def _now() -> int:
    return time.time_ns() // 1000


class _Backup:
    def __init__(
        self, reader: FolderReader, destination: Destination, lease: Lease, throttle: Throttle
    ) -> None:
        self._reader = reader
        self._destination = destination
        self._lease = lease
        self._throttle = throttle
        self._name = lease.note.name
        self._copied = 0
        self._packs: list[Pack] = []  # in the order of their blocks
        self._segments: dict[tuple[int, int, int], StoredFile] = {}

    def make(self) -> Made:
        for place in (FILES, POINTS, NOTES):
            self._destination.remove_partial(place, self._name)
        head = self._reader.head()
        self._look_around(head)
        self._copy_blocks(head)
        with tempfile.TemporaryDirectory(prefix="stafeta-backup-") as scratch:
            path = Path(scratch) / "state.db"
            moment = self._reader.take(path, self._missing, self._known)
            try:
                self._reader.close()  # the write-ahead log is the broker's alone again
                with path.open("rb") as file:
                    state = self._write("state.db", _pieces(file.fileno(), path.stat().st_size))
                segments = [self._segment(one) for one in moment.segments.values()]
            finally:
                close_segments(moment.segments.values())
        point = self._point(moment, state, segments)
        self._lease.check()
        points.save(self._destination, POINTS, point)
        return Made(point, self._copied)

    def _point(self, moment: Moment, state: StoredFile, segments: list[Segment]) -> Point:
        head = moment.head
        return Point(
            self._name,
            moment.time,
            __version__,
            head.position,
            _mark(head),
            moment.topics,
            state,
            self._packs,
            segments,
        )

    def _write(self, name: str, content: Iterable[Any]) -> StoredFile:
        file = self._destination.write(f"{FILES}/{self._name}-{name}", content, self._throttle)
        self._copied += file.size
        return file

    # --- what is there already

    def _look_around(self, head: Head) -> None:
        known, _ = points.all_points(self._destination)
        there = self._destination.sizes(FILES)
        note = self._lease.note

        def is_there(file: StoredFile) -> bool:
            return there.get(file.name.removeprefix(f"{FILES}/")) == file.size

        for one in [segment for point in known for segment in point.segments] + note.segments:
            if is_there(one.file):
                self._segments[one.number, one.file.size, one.modified] = one.file
        runs = Runs(head.runs, head.position)
        packs: dict[tuple[int, int], Pack] = {}  # the newest of each range
        for pack in [pack for point in known for pack in point.packs] + note.packs:
            if is_there(pack.file) and pack.last <= head.last_block and _is_prefix(runs, pack.mark):
                packs[pack.first, pack.last] = pack
        covered = 0
        for (first, last), pack in sorted(packs.items()):
            if first > covered and self._reader.count(first, last, 1):
                self._packs.append(pack)
                covered = last
        for pack in random.sample(self._packs, min(SAMPLE, len(self._packs))):
            few = pack.blocks // 2
            if self._reader.count(pack.first, pack.last, few + 1) <= few:
                self._packs.remove(pack)  # its blocks are copied again, without those that are gone

    def _known(self, number: int, length: int, modified: int) -> bool:
        """As rsync has it: a file of the same name, length and time is the same."""
        return (number, length, modified) in self._segments

    # --- blocks

    def _missing(self, head: Head) -> list[tuple[int, int]]:
        """Ranges of blocks that no pack has: after the first, up to and with the second number."""
        ranges = []
        covered = 0
        for pack in self._packs:
            if pack.first > covered + 1:
                ranges.append((covered, pack.first - 1))
            covered = pack.last
        if covered < head.last_block:
            ranges.append((covered, head.last_block))
        return ranges

    def _copy_blocks(self, head: Head) -> None:
        """What is left in the end is less than a pack, unless more comes than can be copied."""
        for _ in range(ROUNDS):
            before = len(self._packs)
            for after, last in self._missing(head):
                self._copy_range(after, last, head)
            if len(self._packs) == before:
                break
            head = self._reader.head()

    def _copy_range(self, after: int, last: int, head: Head) -> None:
        while after < last:
            rows, size = self._reader.blocks(after, last, PACK)
            end = rows[-1][0] if size >= PACK else last
            if not rows or (size < PACK and last == head.last_block):
                return
            file = self._write(f"blocks-{end:012}", _encoded(rows))
            pack = Pack(file, after + 1, end, len(rows), _mark(head))
            self._packs.append(pack)
            self._packs.sort(key=lambda one: one.first)
            self._lease.add(pack)
            after = end

    # --- segments

    def _segment(self, one: OpenSegment) -> Segment:
        key = one.number, one.length, one.modified
        file = self._segments.get(key)
        if file is not None:
            return Segment(file, one.number, one.modified)
        file = self._write(f"segment-{one.number:08}", _pieces(one.file, one.length))
        segment = Segment(file, one.number, one.modified)
        self._lease.add(segment)
        return segment


def _mark(head: Head) -> str:
    return Runs(head.runs, head.position).mark(head.position - 1)


def _is_prefix(runs: Runs, mark: str) -> bool:
    try:
        runs.check(mark)
    except DataLoss:
        return False
    return True


def _encoded(rows: Sequence[BlockRow]) -> Iterator[Any]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BLOCKS) as writer:
        columns = [
            pa.array(column, one.type) for column, one in zip(zip(*rows, strict=True), BLOCKS, strict=True)
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=BLOCKS))
    content = memoryview(sink.getvalue())
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


def _pieces(file: int, length: int) -> Iterator[bytes]:
    offset = 0
    while offset < length:
        piece = os.pread(file, min(CHUNK, length - offset), offset)
        if not piece:
            raise BackupError("A file of the data folder is shorter than it was.")
        yield piece
        offset += len(piece)
