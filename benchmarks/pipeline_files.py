"""A lake that was committed to once a second for a day: opened, counted, and compacted beside an archive that goes on.

The files and commits are made without Spark and without a broker, as the archive makes them. Of the lake that is merged
as it grows, the last hour is made commit by commit, with the merges and sweeps that the archive does meanwhile. Of what
came before, a day's merges and sweeps leave one file, without a trace of how it came about: it is written as one.
"""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from benchmarks.pipeline_jobs import lake_of, moved
from benchmarks.pipeline_rounds import Meter, in_spark
from benchmarks.results import Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_topic import expect
from stafeta.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stafeta.pipeline.lake import Lake

DAY: Final = datetime(2026, 11, 1, tzinfo=UTC)  # which is over
ROWS: Final = 10  # of a commit
TOPIC: Final = "bench"
AT_ONCE: Final = 500  # files that one commit takes where nobody merges
HOUR: Final = 3_600  # commits that are made one by one where whoever commits merges
SWEEP: Final = 60  # commits, at one a second, between two sweeps of the archive where `compact.keep` is 0


class Found(NamedTuple):
    """Of the table messages."""

    files: int
    megabytes: float
    metadata_megabytes: float
    snapshots: int
    opening: float
    """Seconds until all of its files and offsets are known."""


def run(setting: Setting) -> list[Table]:
    commits = setting.rows(86_400, 40)
    rows: list[Row] = []
    with TemporaryDirectory(dir=setting.folder) as folder:
        for merged in (True, False):
            config = moved(Config(), Path(folder) / ("merged" if merged else "small"))
            config = replace(config, compact=replace(config.compact, keep=0.0))
            setting.say(f"{commits:,} commits, {'merged as they come' if merged else 'whose files stay'}")
            start = perf_counter()
            _fill(lake_of(config), commits, merged=merged)
            made = perf_counter() - start
            rows.append(_row(setting, config, "merged" if merged else "small", commits, made))
        setting.say("compacting the small files, beside an archive")
        with _Archive(lake_of(config), commits) as archive:
            start = perf_counter()
            _compact(config)
            took = perf_counter() - start
        rows.append(_row(setting, config, "compacted", commits + archive.commits, took, archive.slowest))
        setting.say("compacting the other lake, alone")
        config = moved(config, Path(folder) / "merged")
        start = perf_counter()
        _compact(config)
        rows.append(_row(setting, config, "merged, compacted", commits, perf_counter() - start))
    return [
        Table(
            f"A lake of {commits:,} commits",
            f"Each of {ROWS} messages of {PAYLOAD} bytes, of one day that is over. Merged: by whoever commits, as the "
            f"archive does, and swept; the last {HOUR:,} one by one, those before as what merges leave of them. "
            f"Small: {AT_ONCE} files a commit, which nobody merges; then compacted while an archive goes on, whose "
            "slowest commit is told. How long it took to make it so; until all its files and offsets are "
            "known; and to count its rows with Spark, the second time in a session.",
            (
                Column("lake", "lake"),
                Column("files", "files"),
                Column("megabytes", "MB", 1),
                Column("metadata_megabytes", "MB of metadata", 1),
                Column("snapshots", "snapshots"),
                Column("took", "made s", 1),
                Column("opening", "open s", 2),
                Column("counting", "count s", 2),
                Column("slowest", "slowest commit s", 2),
            ),
            tuple(rows),
        )
    ]


def _fill(lake: "Lake", commits: int, *, merged: bool) -> None:
    from stafeta.pipeline.lake.unused import sweep

    if merged:
        before = max(0, commits - HOUR)
        if before:
            _commit(lake, range(before))
        for number in range(before, commits):
            _commit(lake, range(number, number + 1))
            if number % SWEEP == 0:
                sweep(lake.table("messages"), keep=0.0)
        return
    from stafeta.pipeline.lake.archived import ARCHIVED, Known, added
    from stafeta.pipeline.lake.transactions import transaction

    table = lake.table("messages")
    for first in range(0, commits, AT_ONCE):
        last = min(first + AT_ONCE, commits)
        urls = [_file(table.location(), range(number, number + 1)) for number in range(first, last)]
        lists = added(table, Known({TOPIC: [_offsets(range(first, last))]}, {}))
        with transaction(table) as changes:
            changes.add_files(urls, check_duplicate_files=False)
            changes.set_properties({ARCHIVED: lists})


def _commit(lake: "Lake", numbers: range) -> None:
    """One commit, of what is in the commits of these numbers."""
    no_session: Any = None
    url = _file(lake.table("messages").location(), numbers)
    lake.archive_files(no_session, [url], {TOPIC: [_offsets(numbers)]}, "bench", numbers.start)


def _offsets(numbers: range) -> tuple[int, int]:
    """From the first of them up to, not including, the last."""
    return 1 + numbers.start * ROWS, 1 + numbers.stop * ROWS


def _file(location: str, numbers: range) -> str:
    """Writes a file as a task of the archive does."""
    from stafeta.pipeline.connector.file_source import _File

    first, end = _offsets(numbers)
    count = end - first
    seconds = [DAY + timedelta(seconds=number % 86_400) for number in numbers for _ in range(ROWS)]
    columns: dict[str, Any] = {
        "topic": pa.repeat(TOPIC, count),
        "offset": pa.array(range(first, end), pa.int64()),
        "timestamp": pa.array(seconds, pa.timestamp("us", "UTC")),
        "producer": pa.repeat("", count),
        "source": pa.repeat("127.0.0.1:1", count),
        "kind": pa.repeat("string", count),
        "payload": pa.array([f"{offset:0{PAYLOAD}}".encode() for offset in range(first, end)]),
        "counter": pa.nulls(count, pa.int64()),
    }
    file = _File(location, (DAY - datetime(1970, 1, 1, tzinfo=UTC)).days)
    file.add(pa.RecordBatch.from_pydict(columns))
    return str(file.finish().column("url")[0].as_py())


def _compact(config: Config) -> None:
    from stafeta.pipeline.jobs.compact import compact
    from stafeta.pipeline.lake.compaction import today

    options = config.compact
    compact(lake_of(config), "messages", size=options.size, keep=options.keep, until=today())


class _Archive:
    """Commits to a lake on a thread, one commit after the other."""

    def __init__(self, lake: "Lake", first: int) -> None:
        self._lake, self._first = lake, first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.commits, self.slowest = 0, 0.0

    def __enter__(self) -> "_Archive":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            start = perf_counter()
            number = self._first + self.commits
            _commit(self._lake, range(number, number + 1))
            self.commits, self.slowest = self.commits + 1, max(self.slowest, perf_counter() - start)


def _row(
    setting: Setting, config: Config, name: str, commits: int, took: float, slowest: float | None = None
) -> Row:
    found = _look(config, commits * ROWS)
    _, counted = in_spark(setting, config, partial(_count, config=config, total=commits * ROWS))
    values: dict[str, Value] = {"lake": name, **found._asdict(), "took": took, "slowest": slowest}
    return Row(values | {"counting": counted.seconds})


def _look(config: Config, total: int) -> Found:
    from stafeta.ranges import count

    lake = lake_of(config)
    start = perf_counter()
    table = lake.table("messages")
    files = [task.file for task in table.scan().plan_files()]
    expect(total, count(lake.archived()), "what the lake says")
    opening = perf_counter() - start
    expect(total, sum(file.record_count for file in files), "the lake")
    place = Path(table.location().removeprefix("file://"))
    metadata = sum(one.stat().st_size for one in (place / "metadata").rglob("*") if one.is_file())
    size = sum(file.file_size_in_bytes for file in files)
    return Found(len(files), size / 1e6, metadata / 1e6, len(table.metadata.snapshots), opening)


def _count(spark: "SparkSession", meter: Meter, folder: Path, *, config: Config, total: int) -> None:
    with meter:
        found = lake_of(config).frame(spark, "messages").count()
    expect(total, found, "the lake")
