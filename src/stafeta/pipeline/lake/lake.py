"""The lake.

1. An append is one commit: files, who wrote them, and the number of the writer's batch. It is repeated at will: a batch
   that is in the table is not added again.
2. The archive goes by offsets: a message that is in `messages` is not added again, whoever read it, and whenever. The
   same commit says which offsets are there (`stafeta.pipeline.lake.archived`).
3. A table that is added to each second would remember each of these commits: it keeps the last of them.
4. Nothing that a commit did not name is ever seen. What a killed writer left behind goes when it is old (`unused`).
5. One at a time commits to a table (`turns`), and who has committed merges small files (`upkeep`).
"""

import hashlib
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from stafeta.errors import StoreConflict, Unsound
from stafeta.pipeline.disk import location
from stafeta.pipeline.lake import archived, catalog, files
from stafeta.pipeline.lake.archived import ARCHIVED, Known
from stafeta.pipeline.lake.catalog import LAKE
from stafeta.pipeline.lake.compaction import after_commit
from stafeta.pipeline.lake.marks import LOG, latest
from stafeta.pipeline.lake.recovery import has_metadata
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.lake.transactions import transaction
from stafeta.pipeline.lake.turns import turn
from stafeta.pipeline.local_frame import local_frame
from stafeta.ranges import Ranges, count, missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stafeta.config.options import Lake as Settings

FORMER: Final = "stafeta.former"
WRITER: Final = "stafeta.writer."
BATCH: Final = "stafeta.batch"
_ATTEMPTS: Final = 10
_SNAPSHOTS: Final = 100  # that a table keeps at least


class Written(NamedTuple):
    """What an append did."""

    rows: int
    files: int


class Source(NamedTuple):
    """The log that messages were read from: the broker's marks of them, and what raises where the log is another."""

    marks: Collection[str]
    check: Callable[[Collection[str]], None]


class Lake:
    """The tables of a lake. It can be sent to other processes, which open its catalog anew."""

    def __init__(self, settings: "Settings") -> None:
        self.warehouse = location(settings.warehouse)
        self._name = settings.catalog
        self._namespace = settings.namespace

    @property
    def catalog(self) -> Catalog:
        return catalog.catalog(self.warehouse, self._name)

    @property
    def exists(self) -> bool:
        """Whether there is one already. A catalog that is configured is taken to be there."""
        local = catalog.folder(self.warehouse)
        if self._name or local is None:
            return bool(self._name)
        folder = f"{self.warehouse}/{self._namespace}"
        return (local / catalog.FILE).exists() or any(has_metadata(f"{folder}/{name}") for name in TABLES)

    def has(self, name: str) -> bool:
        return self.found(name) is not None

    def found(self, name: str) -> Table | None:
        """A table as it is now, if there is one."""
        if not self.exists:
            return None
        catalog.recovered(self.catalog, self._namespace, name)
        try:
            return self.catalog.load_table((self._namespace, name))
        except NoSuchTableError:
            return None

    def table(self, name: str) -> Table:
        """A table as it is now; it is made where it is missing."""
        return catalog.table(self.catalog, self._namespace, name)

    @property
    def id(self) -> str:
        """A name for this lake that no other has, nor a copy of it elsewhere. One from before lakes had names has none,
        until it is given one."""
        known = self.table("messages").properties.get(LAKE)
        if known is None:
            return ""
        where = f"{known} {self.warehouse} {self._name} {self._namespace}"
        return hashlib.sha256(where.encode()).hexdigest()[:16]

    def give_id(self) -> bool:
        """Gives the lake an id if it has none; whether it had none, and `drop_former` was not called since."""
        if not self.id:
            new = {LAKE: uuid.uuid4().hex, FORMER: "true"}
            self._note(lambda table: {} if LAKE in table.properties else new)
        return FORMER in self.table("messages").properties

    def drop_former(self) -> None:
        """What was kept for the lake when it had no id is done with."""
        self._note(lambda table: {FORMER: None} if FORMER in table.properties else {})

    def known(self, topics: Collection[str] | None = None) -> Known:
        """What is known of the offsets in `messages`: of all topics, or of some, which is quicker."""
        return archived.known_in(self.table("messages"), topics)

    def archived(self) -> Ranges:
        """The offsets that `messages` holds."""
        return archived_in(self.table("messages"))

    @property
    def mark(self) -> str:
        """The broker's mark of the log that is in `messages`; empty where it is not known."""
        return self.table("messages").properties.get(LOG, "")

    def accept(self, absent: Ranges) -> None:
        """Notes that these offsets are not in `messages`, and are not waited for."""
        self._note(lambda table: {ARCHIVED: archived.added(table, Known({}, absent))})

    def append(
        self,
        name: str,
        rows: "DataFrame | pa.Table",
        writer: str,
        batch: int,
        before: int | None = None,
        label: str = "",
    ) -> Written:
        """Adds rows to a table, in a batch of a writer's that counts; nothing where it is there already. `before` is
        the writer's last one before it, where that is known: the table must not have a later one. A batch with another
        `label` is another one."""
        definition = TABLES[name]
        table = self.table(name)

        def is_there() -> bool:
            last, known = _batch_of(table, writer)
            is_same = last == batch and (not known or not label or known == label)
            if not is_same and last > (batch - 1 if before is None else before):
                raise Unsound(
                    f"The table {name} has batch {last} of {writer}, which now writes {batch}: its checkpoint is older "
                    "than the lake, or a copy of one that was gone on with. Put back the newest; or remove it, and the "
                    "job begins anew with what comes."
                )
            return is_same

        if is_there():
            return Written(0, 0)
        write: Any = files.write_table if isinstance(rows, pa.Table) else files.write
        urls: list[str] = write(rows, definition, table.location())
        added = 0

        def change() -> bool:
            nonlocal added
            if is_there():
                return False
            with transaction(table) as changes:
                if urls:
                    changes.add_files(urls, {BATCH: f"{writer} {batch}"}, check_duplicate_files=False)
                changes.set_properties({WRITER + writer: f"{batch} {label}".rstrip()})
            added = _added(table) if urls else 0
            return True

        if self._committed(table, change):
            return Written(added, len(urls))
        files.remove(urls)
        return Written(0, 0)

    def archive(self, frame: "DataFrame", writer: str, batch: int, source: Source | None = None) -> Written:
        """Adds messages to `messages`: those that are not there yet."""
        urls = files.write(frame, TABLES["messages"], self.table("messages").location())
        return self.archive_files(frame.sparkSession, urls, files.ranges(urls), writer, batch, source)

    def archive_files(
        self,
        spark: "SparkSession",
        urls: list[str],
        new: Ranges,
        writer: str,
        batch: int,
        source: Source | None = None,
    ) -> Written:
        """Adds the messages in files, which have these offsets, to `messages`: those that are not there yet."""
        if not new:
            files.remove(urls)
            return Written(0, 0)
        table = self.table("messages")
        fresh = new

        def change() -> bool:
            nonlocal fresh
            fresh = missing(new, archived.known_in(table, new).archived)
            if fresh != new:
                return False
            properties = {ARCHIVED: archived.added(table, Known(new, {}))}
            if source is not None:
                marks = [table.properties.get(LOG, ""), *source.marks]
                source.check(marks)  # while nobody else commits
                properties[LOG] = latest(marks)
            with transaction(table) as changes:
                changes.add_files(urls, {BATCH: f"{writer} {batch}"}, check_duplicate_files=False)
                changes.set_properties(properties)
            return True

        if self._committed(table, change):
            return Written(count(new), len(urls))
        written = Written(0, 0)
        if fresh:
            messages = files.read(spark, TABLES["messages"], urls)
            written = self.archive(_only(messages, fresh), writer, batch, source)
        files.remove(urls)
        return written

    def frame(
        self,
        spark: "SparkSession",
        name: str,
        *,
        snapshot: int | None = None,
        row_filter: str | BooleanExpression | None = None,
    ) -> "DataFrame":
        """A table as a DataFrame, as it is now or at a snapshot. The filter, in pyiceberg's words, leaves out files
        that have no such rows; of the others it leaves all."""
        return self.frame_of(spark, self.table(name), name, snapshot=snapshot, row_filter=row_filter)

    def frame_of(
        self,
        spark: "SparkSession",
        table: Table,
        name: str,
        *,
        snapshot: int | None = None,
        row_filter: str | BooleanExpression | None = None,
    ) -> "DataFrame":
        """The same of a table that was looked up before."""
        scan = table.scan(row_filter or AlwaysTrue(), snapshot_id=snapshot)
        return files.read(spark, TABLES[name], [task.file.file_path for task in scan.plan_files()])

    def _note(self, made: Callable[[Table], Mapping[str, str | None]]) -> None:
        """Sets properties of `messages`, made of what it has; None takes one away."""
        table = self.table("messages")

        def change() -> bool:
            properties = made(table)
            with transaction(table) as changes:
                changes.set_properties(
                    {name: value for name, value in properties.items() if value is not None}
                )
                changes.remove_properties(*(name for name, value in properties.items() if value is None))
            return bool(properties)

        self._committed(table, change)

    def _committed(self, table: Table, change: Callable[[], bool]) -> bool:
        """Whether a change was made, in turn with others: it is tried again where somebody else's came between."""
        with turn(table.location()):
            table.refresh()  # the catalog compares snapshots alone: it would let older properties replace newer ones
            made = self._tried(table, change)
        if made:
            after_commit(table)
        return made

    def _tried(self, table: Table, change: Callable[[], bool]) -> bool:
        for _ in range(_ATTEMPTS):
            try:
                if not change():
                    return False
            except CommitFailedException:  # of one who takes no turns
                table.refresh()
                continue
            _forget(table)
            return True
        raise StoreConflict(
            f"{table.location()}: others change the table all the time; tried {_ATTEMPTS} times."
        )


def _forget(table: Table) -> None:
    """Takes snapshots out of the table's metadata, which is written anew with each commit, when there are many: those
    after which files were only added, so that nothing but the way back is lost. The last one before a replacement
    stays until the files that were replaced go."""
    known = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
    appended = {
        one.parent_snapshot_id
        for one in known
        if one.summary is not None and one.summary.operation == Operation.APPEND
    }
    added = [one.snapshot_id for one in known[:-_SNAPSHOTS] if one.snapshot_id in appended]
    if len(added) < _SNAPSHOTS:
        return
    with suppress(CommitFailedException, ValueError):  # another time; or somebody else did
        table.maintenance.expire_snapshots().by_ids(added).commit()


def archived_in(table: Table) -> Ranges:
    """The offsets that `messages`, as it was looked up, holds."""
    return archived.known_in(table).archived


def _only(frame: "DataFrame", ranges: Ranges) -> "DataFrame":
    """The messages with these offsets."""
    from pyspark.sql import functions as sf

    rows = [(topic, start, end) for topic, runs in ranges.items() for start, end in runs]
    kept = local_frame(frame.sparkSession, rows, "kept string, from_offset bigint, to_offset bigint")
    inside = (sf.col("topic") == sf.col("kept")) & (sf.col("offset") >= sf.col("from_offset"))
    return frame.join(sf.broadcast(kept), inside & (sf.col("offset") < sf.col("to_offset")), "left_semi")


def _batch_of(table: Table, writer: str) -> tuple[int, str]:
    """The last batch of a writer, and its label."""
    number, _, label = table.properties.get(WRITER + writer, "-1").partition(" ")
    return int(number), label


def _added(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["added-records"] or 0)
