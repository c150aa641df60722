"""Files that a table does not need any more: noted first, and removed `keep` later, so that whoever reads goes on.

1. A file that the current snapshot lacks is noted, with the time at which that was found. It goes when the note is as
   old as `compact.keep`, whatever was committed meanwhile, and whatever the clocks of those who committed said.
2. Who replaces files notes them before the commit, without a time, and with one after it. Where he dies between, the
   next who looks puts the time in: later rather than sooner.
3. A file that was never part of the table may be one that a writer is about to commit: it stays for an hour at least.
   A writer that stood still for longer, or whose clock has jumped, finds it gone: while one has the turn to commit,
   none goes.
4. With the files go the snapshots that could still have named them: those older than the one that was current when the
   files were found unused.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyarrow import fs
from pyiceberg.table import Table

from stafeta.pipeline.lake import archived, files
from stafeta.pipeline.lake.turns import FOLDER, turn, turn_if_free

_SWEPT: Final = "swept"  # a file that was touched when it was last done
_DRAFT: Final = ".json."  # in the name of a note that is being written
_LEAST: Final = 60.0  # seconds between two times
UNDER_WAY: Final = 3600.0  # seconds that a commit takes at the most

log = logging.getLogger(__name__)


@dataclass
class Note:
    """Files that are not needed since a time (None: which nobody knows yet), and the sequence number of the snapshot
    that was found to lack them."""

    url: str
    replaced: bool
    since: float | None
    sequence: int
    files: list[str]

    def write(self) -> None:
        """Replaces what was noted before, if it was."""
        what = {
            "replaced": self.replaced,
            "since": self.since,
            "sequence": self.sequence,
            "files": self.files,
        }
        system, path = files.place(self.url)
        draft = f"{path.removesuffix('.json')}{_DRAFT}{uuid.uuid4().hex}"
        with files.create(self.url.removesuffix(path) + draft) as sink:
            sink.write(json.dumps(what).encode())
        system.move(draft, path)

    def due(self, now: float, keep: float) -> bool:
        """A time that is still to come was written by a clock that has been set back since: it counts from then on."""
        wait = keep if self.replaced else max(keep, UNDER_WAY)
        return self.since is not None and self.since <= now - wait


class Removed(NamedTuple):
    snapshots: int
    files: int
    bytes: int


def note(table: Table, urls: Iterable[str], *, replaced: bool, since: float | None) -> Note:
    """Notes files."""
    made = Note(
        f"{table.location()}/{FOLDER}/{uuid.uuid4().hex}.json", replaced, since, _sequence(table), list(urls)
    )
    made.write()
    return made


def noted(table: Table) -> list[Note]:
    """All notes of a table. One that cannot be read is as good as none: its files are found again."""
    found = []
    for url, _, changed in files.found(f"{table.location()}/{FOLDER}"):
        if not url.endswith(
            ".json"
        ):  # a lock, or what somebody left who died, or had no room, while he wrote
            if _DRAFT in url.rpartition("/")[2] and changed < time.time() - UNDER_WAY:
                files.remove([url])
            continue
        system, path = files.place(url)
        try:
            with system.open_input_stream(path) as stream:
                found.append(Note(url, **json.loads(stream.read())))
        except (OSError, ValueError, TypeError):
            files.remove([url])
    return found


def sweep(table: Table, keep: float, now: float | None = None) -> Removed:
    """Removes what has been unused for long enough, and notes what else is."""
    now = time.time() if now is None else now
    listed = {
        url: size
        for below in ("data", "metadata", archived.FOLDER)
        for url, size, _ in files.found(f"{table.location()}/{below}")
    }
    table.refresh()  # what was committed while the files were listed is needed
    needed = referenced(table)
    notes = noted(table)
    known = {url for one in notes for url in one.files}
    new = sorted(listed.keys() - needed - known)
    if new:
        notes.append(note(table, new, replaced=False, since=now))
    for one in notes:
        unused = [
            url for url in one.files if url not in needed
        ]  # others were not replaced after all, or committed
        if one.since is None or one.since > now or unused != one.files:
            one.files, one.since, one.sequence = unused, now, _sequence(table)
            one.write()
    due = [one for one in notes if one.due(now, keep)]
    if not due:
        return Removed(0, 0, 0)
    with turn(table.location()):  # or somebody might commit one of them while it goes
        expired = _expire(table, max(one.sequence for one in due))
        later = {url for one in notes if one not in due for url in one.files}  # noted again since
        stale = {url for one in due for url in one.files if url in listed} - later - referenced(table)
        # Metadata first: none is left that names what is gone.
        files.remove(
            sorted(stale, key=lambda url: (not url.endswith(".metadata.json"), "/data/" in url, url))
        )
    files.remove(one.url for one in due)
    files.remove_empty(f"{table.location()}/data", now - UNDER_WAY)
    gone = [listed[url] for url in stale if not url.endswith(".crc")]  # which Hadoop puts beside each
    return Removed(expired, len(gone), sum(gone))


def sweep_now_and_then(table: Table, keep: float) -> None:
    """Does so some times in the time that files are kept, whoever did it last. Nothing that goes wrong here is the
    caller's concern. Of folders of this machine; for others there is the job compact."""
    system, path = files.place(f"{table.location()}/{FOLDER}/{_SWEPT}")
    if not isinstance(system, fs.LocalFileSystem):
        return
    try:
        with suppress(FileNotFoundError):
            if 0 <= time.time() - os.stat(path).st_mtime < min(max(keep / 4, _LEAST), UNDER_WAY):
                return
        with turn_if_free(table.location(), _SWEPT) as mine:
            if mine:
                Path(path).touch()
                sweep(table, keep)
    except Exception:
        log.warning("Files of %s that nobody needs are not removed.", table.location(), exc_info=True)


def referenced(table: Table) -> set[str]:
    """What a table needs: the files of its current snapshot, its metadata, and its lists of offsets."""
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    known |= archived.urls(table)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return known
    known.add(snapshot.manifest_list)
    for manifest in snapshot.manifests(table.io):
        known.add(manifest.manifest_path)
        known.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return known


def _expire(table: Table, sequence: int) -> int:
    """Forgets the snapshots before one; returns how many."""
    with turn(table.location()):
        table.refresh()
        heads: Collection[Any] = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            one.snapshot_id
            for one in table.snapshots()
            if (one.sequence_number or 0) < sequence and one.snapshot_id not in heads
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
            table.refresh()
        return len(old)


def _sequence(table: Table) -> int:
    return table.last_sequence_number
