"""The job rollup: readings in windows, to topics `rollup/<size>/<topic>` and to the table `rollups`.

1. A micro-batch is one job of Spark's, whose tasks sum readings up (`rolling.window_source`). What they come to is put
   together here, with the windows that were open before.
2. A micro-batch is computed once, and what comes of it is on the disk beside the checkpoint before anybody sees it.
   One that is repeated is not computed again: the same windows go to the lake and to the topics, each of which takes
   them once.
3. The windows that are open stay in memory for the next micro-batch. Whoever has none reads them from the disk.
4. What was written of a batch is removed when the next is done.
5. A checkpoint that was put back from a copy, or copied and gone on with twice, has not handed on the last windows that
   lake and topics have under its name: the job ends, or windows would be missing there, or come twice.
"""

import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import Unsound
from stafeta.pipeline import checkpoint_files, spark_log
from stafeta.pipeline.connector.sink import write_once
from stafeta.pipeline.connector.stream import time_of_day
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs.rolling import former_windows
from stafeta.pipeline.jobs.rolling.closing import advanced
from stafeta.pipeline.jobs.rolling.window_rows import finished, published
from stafeta.pipeline.jobs.rolling.window_source import DELAY, SIZES, WindowSource
from stafeta.pipeline.jobs.rolling.windows import Windows
from stafeta.pipeline.lake import Lake
from stafeta.units import format_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.config.options import Rollup as Options

NAME: Final = "rollup"
OPEN, CLOSED = "open", "closed"
_FOLDER: Final = "windows"
_AHEAD: Final = "ahead"
_DONE: Final = "done.json"
_LAST, _BEFORE = (
    "last",
    "before",
)  # micro-batches that had windows to hand on: the last, and that before this one
_LEAST, _MOST = 1.0, 30.0  # seconds between micro-batches without messages


def start(context: Context) -> "Sequence[StreamingQuery]":
    place = f"{context.checkpoint}/{_FOLDER}"
    rollup = Rollup(
        lake=context.lake,
        broker=context.config.pipeline.broker,
        folder=place,
        name=f"{NAME}/{checkpoint_files.identity(place)}",
        sizes=tuple(round(size * 1e6) for size in context.config.rollup.sizes),
        delay=round(context.config.rollup.delay * 1e6),
        log=context.checkpoint,
    )
    context.spark.dataSource.register(WindowSource)
    options = {SIZES: ",".join(map(str, rollup.sizes)), DELAY: rollup.delay, **_idling(context.config.rollup)}
    parts = context.stream(source=WindowSource.name(), **options)
    return [context.start(parts.writeStream.foreachBatch(Rolling(rollup)))]


def _idling(options: "Options") -> dict[str, Any]:
    """While nothing comes, there are micro-batches without messages, until the last windows are closed by the clock."""
    every = min(max(min(options.sizes) / 10, _LEAST), _MOST)
    until = max(options.sizes) + options.delay + 2 * every
    return {"idleTrigger": f"{round(every * 1000)}ms", "idleTriggerFor": f"{round(until * 1000)}ms"}


def figures(context: Context) -> Mapping[str, Any]:
    """For the reports: how many windows are closed, how many readings came too late for those of each size, and how
    many had times that are ahead."""
    last = checkpoint_files.read(f"{context.checkpoint}/{_FOLDER}", _DONE)
    return {} if last is None else {name: last.get(name, 0) for name in ("late", _AHEAD, "windows")}


@dataclass(frozen=True)
class Rollup:
    """What a micro-batch needs to know. It can be sent to other processes."""

    lake: Lake
    broker: str
    folder: str
    name: str
    sizes: tuple[int, ...]
    delay: int
    log: str
    """Spark's checkpoint."""


class Rolling:
    """What is done with each micro-batch. It can be sent to other processes, which read what is open from the disk."""

    def __init__(self, rollup: Rollup) -> None:
        self._rollup = rollup
        self._open: tuple[int, Windows] | None = None  # after which micro-batch

    def __call__(self, batch: "DataFrame", number: int) -> None:
        self.take(self._packed(batch, number), number)

    def _packed(self, batch: "DataFrame", number: int) -> Iterator[tuple[int, bytes]]:
        """What the tasks make of a micro-batch, once it is asked for. While nothing comes, there is no task."""
        if not spark_log.is_empty(self._rollup.log, number):
            yield from ((row.now, row.parts) for row in batch.collect())

    def __getstate__(self) -> dict[str, Any]:
        return {"_rollup": self._rollup, "_open": None}

    def take(self, packed: Iterable[tuple[int, bytes]], number: int) -> None:
        """Takes the parts of a micro-batch, packed, each with its time of the day. Nothing is asked for them where it
        was computed before."""
        rollup = self._rollup
        done = checkpoint_files.read(f"{rollup.folder}/{number}", _DONE)
        closed: Windows | None = None
        if done is None:
            done, closed = self._compute(packed, number)
        if done[CLOSED]:
            if closed is None:
                closed = read_windows(rollup.folder, number, done)[CLOSED]
            self._publish(finished(closed, _labels(done["sizes"])), number, done.get(_BEFORE))
        checkpoint_files.remove(f"{rollup.folder}/{number - 1}")

    def _compute(self, packed: Iterable[tuple[int, bytes]], number: int) -> tuple[dict[str, Any], Windows]:
        """Puts a batch together with the windows that were open before; returns what was written of it."""
        rollup, before = self._rollup, self._before(number)
        state = self._state(number, before)
        times, parts = [time_of_day()], []
        for now, one in packed:
            times.append(now)
            parts.append(Windows.unpack(one))
        now = times[-1]  # all parts have the same
        idle = spark_log.looked_at(rollup.log, number)
        after = advanced(state, Windows.joined(parts), delay=rollup.delay, now=now, idle=idle)
        # Windows of a size that is not wanted any more are still open.
        sizes = sorted({*before["sizes"], *rollup.sizes})
        folder = f"{rollup.folder}/{number}"
        unchanged = not parts and not before.get(CLOSED) and not len(after.closed)
        name = self._kept(number, before.get("file")) if unchanged else None
        if name is None:
            content = Windows.pack_all([after.open, after.closed])
            name = f"{uuid.uuid4().hex}-{zlib.crc32(content):08x}.arrow"
            checkpoint_files.write_content(folder, name, content)
        done = {
            "file": name,
            "sizes": sizes,
            OPEN: len(after.open),
            CLOSED: len(after.closed),
            "windows": before["windows"] + len(after.closed),
            "late": {
                label: before["late"].get(label, 0)
                + int(after.late["count"][after.late["size"] == size].sum())
                for size, label in _labels(sizes).items()
            },
            _AHEAD: before.get(_AHEAD, 0) + after.ahead,
            _BEFORE: before.get(_LAST),
            _LAST: number if len(after.closed) else before.get(_LAST),
        }
        checkpoint_files.write(folder, _DONE, done)
        checkpoint_files.write(rollup.folder, _DONE, done)
        self._open = number, after.open
        return done, after.closed

    def _kept(self, number: int, file: str | None) -> str | None:
        """The file of the micro-batch before, where it can be that of this one, too: nothing has changed."""
        folders = (f"{self._rollup.folder}/{one}" for one in (number - 1, number))
        return (
            file
            if file is not None and checkpoint_files.link_content(next(folders), file, next(folders))
            else None
        )

    def _before(self, number: int) -> dict[str, Any]:
        if number == 0:
            return {"sizes": [], OPEN: 0, "windows": 0, "late": {}, _LAST: -1}
        folder = self._rollup.folder
        known = checkpoint_files.read(f"{folder}/{number - 1}", _DONE)
        if known is None:
            raise Unsound(
                f"The windows that were open after micro-batch {number - 1} are missing in {folder}: what is left "
                "of the checkpoint is of no use. Remove it, and the rollup begins anew with what comes."
            )
        return known

    def _state(self, number: int, before: Mapping[str, Any]) -> Windows:
        if self._open is not None and self._open[0] == number - 1:
            return self._open[1]
        return (
            read_windows(self._rollup.folder, number - 1, before)[OPEN] if before[OPEN] else Windows.empty()
        )

    def _publish(self, closed: Any, number: int, before: int | None) -> None:
        """Windows to the lake, and to topics."""
        rollup = self._rollup
        rollup.lake.append("rollups", closed, rollup.name, number, before)
        write_once(rollup.broker, rollup.name, number, published(closed, NAME), before)


def read_windows(folder: str, number: int, done: Mapping[str, Any]) -> dict[str, Windows]:
    """What was written of a batch: the windows that are open, and those that are closed."""
    if "file" not in done:
        return {name: former_windows.read(f"{done['folder']}/fate={name}") for name in (OPEN, CLOSED)}
    content = checkpoint_files.content(f"{folder}/{number}", done["file"])
    known = done["file"].removesuffix(".arrow").partition("-")[2]  # those of earlier versions have none
    if content is None or (known and known != f"{zlib.crc32(content):08x}"):
        raise Unsound(
            f"The file {done['file']} of micro-batch {number} is {'missing' if content is None else 'damaged'} in "
            f"{folder}: what is left of the checkpoint is of no use. Remove it, and the rollup begins anew with what "
            "comes."
        )
    return dict(zip((OPEN, CLOSED), Windows.unpack_all(content), strict=True))


def _labels(sizes: Iterable[int]) -> dict[int, str]:
    return {size: format_duration(size / 1e6) for size in sizes}


JOB = Job(
    NAME, "readings in windows of time, to topics rollup/<size>/<topic> and the lake", start, figures=figures
)
