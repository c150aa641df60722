"""The job compact: small files of closed days into large ones, and what nobody reads any more away.

1. A day is closed when it is over (UTC). Its small files are written anew as few, sorted; one commit puts them in place
   of the old ones, and adds or takes no row.
2. Readers are not disturbed: files go `compact.keep` after the last snapshot that has them was replaced.
3. What a writer left behind that was killed goes too, once it is as old.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from stafeta.errors import Unsound
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.lake import Lake, archived, files
from stafeta.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "compact"
_SMALL: Final = 0.75  # of the size that is wanted
_ATTEMPTS: Final = 10
_UNDER_WAY: Final = 3600.0  # seconds that a commit takes at the most


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


def start(context: Context) -> "Sequence[StreamingQuery]":
    settings = context.config.compact
    today = datetime.now(UTC).date().toordinal() - datetime(1970, 1, 1, tzinfo=UTC).toordinal()
    until = today + 1 if context.arguments.get("today") else today
    saved = [
        compact(context.spark, context.lake, name, size=settings.size, keep=settings.keep, until=until)
        for name in TABLES
        if context.lake.has(name)
    ]
    print(told(saved))  # noqa: T201
    return ()


def compact(
    spark: "SparkSession",
    lake: Lake,
    name: str,
    *,
    size: int,
    keep: float,
    until: int,
    now: float | None = None,
) -> Saved:
    """Compacts a table, in the days (since 1970) before `until`."""
    table = lake.table(name)
    before = _data_files(table)
    for small in grouped(before, size, until):
        _rewrite(spark, table, name, small, size)
    now = time.time() if now is None else now  # after what it has itself replaced
    snapshots, dropped = _expire(table, now - keep)
    removed, freed = _sweep(table, dropped, now - max(keep, _UNDER_WAY))
    after = _data_files(table)
    return Saved(name, len(before), len(after), _size(before), _size(after), snapshots, removed, freed)


def grouped(found: Iterable[DataFile], size: int, until: int) -> list[list[DataFile]]:
    """The small files of each closed day, where there are more of them than there need be."""
    days: defaultdict[int, list[DataFile]] = defaultdict(list)
    for file in found:
        if (
            file.partition[0] is not None
            and file.partition[0] < until
            and file.file_size_in_bytes < size * _SMALL
        ):
            days[file.partition[0]].append(file)
    return [days[day] for day in sorted(days) if len(days[day]) > _count(days[day], size)]


def _count(some: list[DataFile], size: int) -> int:
    """How many files they should be: none of them small again."""
    return max(1, int(_size(some) / size))


def _rewrite(spark: "SparkSession", table: Table, name: str, small: list[DataFile], size: int) -> None:
    definition = TABLES[name]
    frame = spark.read.schema(definition.columns).parquet(*(file.file_path for file in small))
    count = _count(small, size)
    frame = frame.coalesce(1) if count == 1 else frame.repartitionByRange(count, *definition.order)
    urls = files.write(frame, definition, table.location())
    large = list(parquet_files_to_data_files(table.io, table.metadata, iter(urls)))
    rows, expected = (sum(file.record_count for file in some) for some in (large, small))
    if rows != expected:
        files.remove(urls)
        raise Unsound(f"{expected} rows of the table {name} became {rows}: its files are left as they were.")
    if not _replaced(table, small, large):
        files.remove(urls)


def _replaced(table: Table, old: list[DataFile], new: list[DataFile]) -> bool:
    """Puts files in place of others; false where somebody else did so."""
    for _ in range(_ATTEMPTS):
        try:
            with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
                for file in old:
                    change.delete_data_file(file)
                for file in new:
                    change.append_data_file(file)
        except CommitFailedException:  # the archive goes on meanwhile
            table.refresh()
            continue
        except ValidationException:
            table.refresh()
            return False
        return True
    return False


def _expire(table: Table, before: float) -> tuple[int, set[str]]:
    """Forgets the snapshots that were replaced before a time; returns how many, and the files that nobody has now."""
    had = _referenced(table)
    for _ in range(_ATTEMPTS):
        known = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
        old = [
            one.snapshot_id for one, following in pairwise(known) if following.timestamp_ms / 1000 < before
        ]
        if not old:
            return 0, set()
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException:
            table.refresh()
            continue
        table.refresh()
        return len(old), had - _referenced(table)
    return 0, set()


def _sweep(table: Table, dropped: set[str], before: float) -> tuple[int, int]:
    """Removes files that were dropped, and those that no snapshot has and that are older than this: a writer that is
    under way has some. Returns how many, and their bytes."""
    listed = files.found(table.location())
    table.refresh()
    known = _referenced(table)
    stale = {
        url: size
        for url, size, changed in listed
        if url not in known and (url in dropped or changed < before)
    }
    files.remove(stale)
    files.remove_empty(table.location(), before)
    counted = [
        size for url, size in stale.items() if not url.endswith(".crc")
    ]  # which Hadoop puts beside each
    return len(counted), sum(counted)


def _referenced(table: Table) -> set[str]:
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    known |= archived.urls(table)
    manifests: dict[str, Any] = {}
    for snapshot in table.snapshots():
        known.add(snapshot.manifest_list)
        with suppress(FileNotFoundError):
            manifests.update((one.manifest_path, one) for one in snapshot.manifests(table.io))
    for path, manifest in manifests.items():
        known.add(path)
        known.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return known


def _data_files(table: Table) -> list[DataFile]:
    return [task.file for task in table.scan().plan_files()]


def _size(some: Iterable[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in some)


def told(saved: Sequence[Saved]) -> str:
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


JOB = Job(NAME, "small files of closed days into large ones, and old snapshots away", start, batch=True)
