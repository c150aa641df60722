"""The job rollup: readings in windows, to topics `rollup/<size>/<topic>` and to the table `rollups`.

Its tasks sum readings up (`rolling.window_source`). What they come to is put together here, with the windows that were
open before: those are the state (`batches.stateful`), and those that are closed go to the lake and to the topics, each
of which takes them once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stafeta.clients.flight.channel import spawn
from stafeta.pipeline import checkpoint_files, spark_log
from stafeta.pipeline.connector.sink import put_aside
from stafeta.pipeline.connector.stream import time_of_day
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.jobs.batches.reading_source import direct
from stafeta.pipeline.jobs.batches.stateful import BEFORE, FILE, Computed, StatefulBatches, last_notes
from stafeta.pipeline.jobs.rolling import former_windows
from stafeta.pipeline.jobs.rolling.closing import advanced, recalled
from stafeta.pipeline.jobs.rolling.window_rows import closed_windows, finished, published
from stafeta.pipeline.jobs.rolling.window_source import DELAY, SIZES, WindowSource, WindowStream
from stafeta.pipeline.jobs.rolling.windows import Windows
from stafeta.pipeline.lake import Lake
from stafeta.units import format_duration

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.config.options import Rollup as Options

NAME: Final = "rollup"
OPEN, CLOSED = "open", "closed"
_FOLDER: Final = "windows"
_AHEAD: Final = "ahead"
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
    rolling = Rolling(rollup, WindowStream(direct(context), rollup.sizes, rollup.delay))
    return [context.start(parts.writeStream.foreachBatch(rolling))]


def _idling(options: "Options") -> dict[str, Any]:
    """While nothing comes, there are micro-batches without messages, until the last windows are closed by the clock."""
    every = min(max(min(options.sizes) / 10, _LEAST), _MOST)
    until = max(options.sizes) + options.delay + 2 * every
    return {"idleTrigger": f"{round(every * 1000)}ms", "idleTriggerFor": f"{round(until * 1000)}ms"}


def figures(context: Context) -> Mapping[str, Any]:
    """For the reports: how many windows are closed, how many readings came too late for those of each size, and how
    many had times that are ahead."""
    last = last_notes(f"{context.checkpoint}/{_FOLDER}")
    return last and {name: last.get(name, 0) for name in ("late", _AHEAD, "windows")}


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


class Rolling(StatefulBatches[Windows, Windows]):
    """The state are the windows that are open, the results those that are closed."""

    job = NAME
    counted = CLOSED

    def __init__(self, rollup: Rollup, stream: WindowStream | None = None) -> None:
        super().__init__(rollup.folder, rollup.log, stream)
        self._rollup = rollup

    def compute(
        self, state: Windows, before: Mapping[str, Any], packed: Iterable[tuple[int, bytes]], number: int
    ) -> Computed[Windows, Windows]:
        rollup = self._rollup
        times, parts = [time_of_day()], []
        for now, one in packed:
            times.append(now)
            parts.append(Windows.unpack(one))
        now = times[-1]  # all parts have the same
        idle = spark_log.looked_at(rollup.log, number)
        batch = Windows.joined(parts)
        state = recalled(state, batch, delay=rollup.delay, now=now, closed=self._closed)
        after = advanced(state, batch, delay=rollup.delay, now=now, idle=idle)
        # Windows of a size that is not wanted any more are still open.
        sizes = sorted({*before.get("sizes", ()), *rollup.sizes})
        late = before.get("late", {})
        notes = {
            "sizes": sizes,
            OPEN: len(after.open),
            CLOSED: len(after.closed),
            "windows": before.get("windows", 0) + len(after.closed),
            "late": {
                label: late.get(label, 0) + int(after.late["count"][after.late["size"] == size].sum())
                for size, label in _labels(sizes).items()
            },
            _AHEAD: before.get(_AHEAD, 0) + after.ahead,
        }
        return Computed(after.open, after.closed, notes, bool(parts) or len(after.closed) > 0)

    def _closed(self, topics: Sequence[str], time: int) -> Windows:
        """The windows in the lake of some topics that end after a time."""
        lake = self._rollup.lake
        return closed_windows(lake.table("rollups"), topics, time) if lake.has("rollups") else Windows.empty()

    def hand_on(self, results: Windows, notes: Mapping[str, Any], number: int) -> None:
        """Windows to the lake, and to topics."""
        rollup = self._rollup
        closed = finished(results, _labels(notes["sizes"]))
        before = notes.get(BEFORE)

        def put_aside_messages() -> Callable[[], None]:
            return put_aside(rollup.broker, rollup.name, number, published(closed, NAME), before)

        messages = spawn(put_aside_messages)  # while the lake waits for its disk
        try:
            rollup.lake.append("rollups", closed, rollup.name, number, before, notes.get(FILE, ""))
        finally:
            messages.exception()  # waits: what goes on being put aside would be beside the next attempt's
        messages.result()()

    def empty(self) -> Windows:
        return Windows.empty()

    def pack(self, state: Windows, results: Windows) -> bytes:
        return Windows.pack_all([state, results])

    def unpack(self, content: bytes) -> tuple[Windows, Windows]:
        opened, closed = Windows.unpack_all(content)
        return opened, closed

    def read(self, number: int, notes: Mapping[str, Any]) -> tuple[Windows, Windows]:
        if "folder" in notes:  # as an earlier version has written them
            opened, closed = (
                former_windows.read(f"{notes['folder']}/fate={name}") for name in (OPEN, CLOSED)
            )
            return opened, closed
        return super().read(number, notes)


def _labels(sizes: Iterable[int]) -> dict[int, str]:
    return {size: format_duration(size / 1e6) for size in sizes}


JOB = Job(NAME, BUILT_IN[NAME].about, start, figures=figures)
