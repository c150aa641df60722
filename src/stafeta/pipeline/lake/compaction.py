"""Few files, also where many are committed: small ones are merged into larger ones.

1. Whoever commits merges: as soon as there are `FEW` files of about one size in a day, they become one, which is one of
   the next size. So a table has some ten files a day, and a row is written three or four times. In a day that is over
   any two of one size become one.
2. A merge is one commit. It adds and takes no row, and what the table says of itself (the offsets in it) stays.
3. The rows are read and written before it is one's turn to commit, so that nobody waits for that.
4. A file that is damaged stays as it is, and the others are merged without it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from stafeta.pipeline.lake import files, unused
from stafeta.pipeline.lake.merging import DamagedFile, Source, merge
from stafeta.pipeline.lake.tables import LISTS, TABLES
from stafeta.pipeline.lake.transactions import transaction
from stafeta.pipeline.lake.turns import MERGE, turn, turn_if_free

SIZE: Final = 128 << 20  # bytes of a file that is large enough
FEW: Final = 16
MOST: Final = 500  # files that are merged at once
SMALL: Final = 0.75  # of the size that is wanted
_SMALLEST: Final = 64 << 10  # bytes: what is smaller is of one size
_LISTED: Final = 1000  # files in a list that is written anew
_WHILE: Final = 5.0  # seconds that a writer merges before it goes on
_looked: dict[str, int] = {}  # by table: how many files it had after the last look

log = logging.getLogger(__name__)


def today() -> int:
    """The day, since 1970 (UTC)."""
    return int(datetime.now(UTC).timestamp() // 86_400)


class Merging:
    """Merges files of a table, for as long as it is the only one to do so (`MERGE`). What it has read of the table's
    lists of files it does not read again: those never change."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._name = table.name()[-1]
        self._lists: dict[str, list[ManifestEntry]] = {}
        self.made: set[str] = set()
        """The URLs of the files that it has put in the place of others."""
        self.damaged: dict[str, DamagedFile] = {}
        """By URL, the files that are left alone."""

    def files(self) -> list[DataFile]:
        """The files of the table as it is now, the oldest first."""
        self._table.refresh()
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return []
        lists = snapshot.manifests(self._table.io)
        self._lists = {
            one.manifest_path: self._lists.get(one.manifest_path) or self._read(one) for one in lists
        }
        found = [entry for one in lists for entry in self._lists[one.manifest_path]]
        found.sort(key=lambda entry: entry.sequence_number or 0)
        return [entry.data_file for entry in found if entry.data_file.file_path not in self.damaged]

    def merge(self, group: list[DataFile]) -> bool:
        """Puts one file in the place of several; false where that cannot be."""
        table = self._table
        sources = [Source(file.file_path, file.record_count) for file in group]
        try:
            url = merge(sources, TABLES[self._name], f"{table.location()}/data")
        except DamagedFile as error:
            log.warning("%s It is left as it is, and not merged with others.", error)
            self.damaged[error.url] = error
            return False
        large = list(parquet_files_to_data_files(table.io, table.metadata, iter([url])))
        note = unused.note(table, [source.url for source in sources], replaced=True, since=None)
        with turn(table.location()):
            table.refresh()
            if not files.exists(url):  # this process stood still for so long that it was swept
                files.remove([note.url])
                return False
            try:
                with transaction(table) as changes:
                    if not table.properties.items() >= LISTS.items():  # it was made before they counted
                        changes.set_properties(LISTS)
                    change = _Replacing(Operation.OVERWRITE, changes, table.io)
                    change.lists = self._lists
                    with change:
                        for file in group:
                            change.delete_data_file(file)
                        change.append_data_file(large[0])
            except (
                CommitFailedException,
                ValidationException,
            ):  # somebody else replaced or changed something
                files.remove([url, note.url])
                table.refresh()
                return False
            note.since, note.sequence = time.time(), table.last_sequence_number
        note.write()
        self.made.add(url)
        self._forget_lists()
        return True

    def _forget_lists(self) -> None:
        """Of those that were written anew."""
        snapshot = self._table.current_snapshot()
        assert snapshot is not None
        used = {one.manifest_path for one in snapshot.manifests(self._table.io)}
        self._lists = {path: entries for path, entries in self._lists.items() if path in used}

    def _read(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)


class _Replacing(_OverwriteFiles):
    """Reads no list of files that was read or written before, and writes only those anew that change, as several short
    ones: the next to be taken are in one of these."""

    lists: dict[str, list[ManifestEntry]]

    def _existing_manifests(self) -> list[ManifestFile]:
        kept = []
        for manifest, entries in self._entries():
            left = [entry for entry in entries if entry.data_file not in self._deleted_data_files]
            if len(left) == len(entries):
                kept.append(manifest)
                continue
            for first in range(0, len(left), _LISTED):
                some = [
                    self._copied(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)
                    for entry in left[first : first + _LISTED]
                ]
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in some:
                        writer.add_entry(entry)
                kept.append(writer.to_manifest_file())
                self.lists[kept[-1].manifest_path] = some
        return kept

    def _deleted_entries(self) -> list[ManifestEntry]:
        deleted = [
            self._copied(entry, ManifestEntryStatus.DELETED, self._snapshot_id)
            for _, entries in self._entries()
            for entry in entries
            if entry.data_file in self._deleted_data_files
        ]
        self._validate_required_deletes(deleted)
        return deleted

    def _entries(self) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
        snapshot = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        for manifest in [] if snapshot is None else snapshot.manifests(self._io):
            if manifest.has_added_files() or manifest.has_existing_files():
                if manifest.manifest_path not in self.lists:
                    self.lists[manifest.manifest_path] = self.fetch_manifest_entry(manifest)
                yield manifest, self.lists[manifest.manifest_path]

    @staticmethod
    def _copied(entry: ManifestEntry, status: ManifestEntryStatus, snapshot: int | None) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )


def after_commit(table: Table) -> None:
    """Merges files of a table if there have become many since the last look, for a few seconds, and unless somebody
    else does. Nothing that goes wrong here is the committer's concern."""
    location, count = table.location(), _count(table)
    if count < _looked.get(location, 0) + FEW:
        _looked[location] = min(count, _looked.get(location, 0))
        return
    try:
        with turn_if_free(location, MERGE) as mine:
            if mine:
                _looked[location] = _merge_some(table)
    except Exception:
        log.warning("Files of %s are not merged.", location, exc_info=True)
        _looked[location] = count


def _merge_some(table: Table) -> int:
    """How many files there are then; none, where there is more to merge."""
    until = time.monotonic() + _WHILE
    merging = Merging(table)
    while groups := alike(merging.files(), SIZE, today()):
        for group in groups:
            merging.merge(group)
            if time.monotonic() > until:
                return 0
    return _count(table)


def alike(found: Iterable[DataFile], size: int, today: int) -> list[list[DataFile]]:
    """Files of a day that are of about one size, where there are many; of a day that is over, where there are two."""
    classes: defaultdict[tuple[int, int], list[DataFile]] = defaultdict(list)
    for file in found:
        day, length = file.partition[0], file.file_size_in_bytes
        if day is not None and length < size * SMALL:
            classes[day, _class(length)].append(file)
    return [
        group
        for (day, _), some in sorted(classes.items())
        for group in _parted(some, size)
        if len(group) >= (2 if day < today else FEW)
    ]


def small(found: Iterable[DataFile], size: int, until: int) -> list[list[DataFile]]:
    """The small files of each day before one, parted so that they become files that are large enough."""
    days: defaultdict[int, list[DataFile]] = defaultdict(list)
    for file in found:
        day = file.partition[0]
        if day is not None and day < until and file.file_size_in_bytes < size * SMALL:
            days[day].append(file)
    return [group for _, some in sorted(days.items()) for group in _parted(some, size) if len(group) > 1]


def _parted(some: Collection[DataFile], size: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    length = 0
    for file in some:
        group.append(file)
        length += file.file_size_in_bytes
        if length >= size or len(group) == MOST:
            yield group
            group, length = [], 0
    if group:
        yield group


def _class(length: int) -> int:
    """Files of one class are less than `FEW` times as large as one another."""
    found = 0
    while length >= _SMALLEST:
        length //= FEW
        found += 1
    return found


def _count(table: Table) -> int:
    snapshot = table.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    return int((summary["total-data-files"] if summary else None) or 0)
