"""The job compact: small files of closed days into large ones, and what nobody reads any more away.

1. A day is closed when it is over (UTC). Its small files are merged in groups, each of which becomes one file in one
   commit, in turn with whoever else commits: a job that is stopped has done what it has said.
2. Readers are not disturbed: files go `compact.keep` after they were found to be replaced.
3. What a writer left behind that was killed goes too, once it is as old.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from stafeta.errors import StoreConflict, Unsound
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.compaction import Merging, small, today
from stafeta.pipeline.lake.merging import DamagedFile
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.lake.turns import MERGE, turn
from stafeta.pipeline.lake.unused import sweep
from stafeta.times import EPOCH

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "compact"
_ATTEMPTS: Final = 10
_LINE: Final = 2.0  # seconds between two lines


class Saved(NamedTuple):
    """What became of a table."""

    table: str
    files_before: int
    files: int
    bytes_before: int
    bytes: int
    snapshots: int
    """Of which so many went, and so many bytes of files that nobody reads."""
    removed: int
    freed: int
    damaged: tuple[DamagedFile, ...] = ()


def start(context: Context) -> "Sequence[StreamingQuery]":
    settings = context.config.compact
    until = today() + 1 if context.arguments.get("today") else today()
    saved = [
        compact(
            context.lake,
            name,
            size=settings.size,
            keep=settings.keep,
            until=until,
            stopping=context.stopping.is_set,
        )
        for name in TABLES
        if context.lake.has(name) and not context.stopping.is_set()
    ]
    print(summary(saved))  # noqa: T201
    damaged = [error for one in saved for error in one.damaged]
    if damaged:
        raise Unsound(
            f"{len(damaged)} files are damaged, and are left as they are; the first: {damaged[0]} "
            "Restore it from a backup; audit says which messages are in it."
        )
    return ()


def compact(
    lake: Lake,
    name: str,
    *,
    size: int,
    keep: float,
    until: int,
    now: float | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Saved:
    """Compacts a table, in the days (since 1970) before `until`."""
    table = lake.table(name)
    merging = Merging(table)
    before = merging.files()
    begun = {file.file_path for file in before}  # what comes later is for the next time: there is an end

    def groups() -> list[list[DataFile]]:
        known = begun | merging.made
        return small((file for file in merging.files() if file.file_path in known), size, until)

    _merge(table, merging, groups, _Lines(name), stopping)
    removed = sweep(table, keep, now)
    after = merging.files()
    return Saved(
        name,
        len(before),
        len(after) + len(merging.damaged),
        _size(before),
        _size(after),
        *removed,
        damaged=tuple(merging.damaged.values()),
    )


def _merge(
    table: Table,
    merging: Merging,
    groups: Callable[[], list[list[DataFile]]],
    lines: "_Lines",
    stopping: Callable[[], bool],
) -> None:
    """Merges until there is nothing left to merge: files that were merged may be small still."""
    failed = 0
    while found := groups():
        for number, group in enumerate(found):
            if stopping():
                return
            known = len(merging.damaged)
            with turn(table.location(), MERGE):
                if merging.merge(group):
                    lines.say(group, len(found) - number - 1)
                    continue
            if len(merging.damaged) == known:
                failed += 1
            if failed > _ATTEMPTS:
                raise StoreConflict(
                    f"{table.location()}: others replace its files all the time; tried {_ATTEMPTS} times."
                )
            break  # and looks at what there is now


class _Lines:
    """Says how far it is, now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = time.monotonic()
        self._files = 0

    def say(self, group: list[DataFile], left: int) -> None:
        self._files += len(group)
        if time.monotonic() < self._said + _LINE:
            return
        self._said = time.monotonic()
        day = EPOCH.date() + timedelta(days=group[0].partition[0])
        print(  # noqa: T201
            f"{self._name}: {self._files:,} files are merged, now of {day}; {left} groups are left.",
            file=sys.stderr,
            flush=True,
        )


def _size(some: Iterable[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in some)


def summary(saved: Sequence[Saved]) -> str:
    """What was saved, for people."""
    if not saved:
        return "There is no lake yet."
    return "\n".join(
        f"{one.table}: {one.files_before} files of {_about(one.bytes_before)} are {one.files} of {_about(one.bytes)}; "
        f"{one.snapshots} snapshots and {one.removed} files of {_about(one.freed)} are removed."
        for one in saved
    )


def _about(size: int) -> str:
    """A size, rounded to what a person reads."""
    for unit in ("TB", "GB", "MB", "KB"):
        factor = 1000 ** {"TB": 4, "GB": 3, "MB": 2, "KB": 1}[unit]
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


JOB = Job(NAME, BUILT_IN[NAME].about, start, batch=True)
