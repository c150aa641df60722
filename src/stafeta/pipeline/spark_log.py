"""Spark's own checkpoint of a query: the offsets that it has planned, and the micro-batches that it is done with.

Spark writes these files whole or not at all, and does not sync them. After a loss of power any of them may be missing
or empty. What holds all the same:

1. The offsets of a micro-batch are on the disk before any of it is read: one that is done again holds the same.
2. All that a micro-batch has left (the commit, the state, what jobs keep beside it) is on the disk before the next is
   planned, and before the messages are acknowledged to the broker. The file `synced.json` says up to which
   micro-batch, and since when the system runs.
3. A query that starts on a system that was started anew does again what came after that: `recover` removes what Spark
   has noted of it. Nothing of it was acknowledged, and whoever has it already does not take it twice.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stafeta.pipeline import checkpoint_files, disk
from stafeta.pipeline.connector.options import LOOKED, NEW_TOPICS

SYNCED: Final = "synced.json"


def looked_at(folder: str, batch: int) -> int | None:
    """When the topics that are not in a micro-batch had nothing more, in microseconds since 1970: its offsets say so
    where it is known, if the stream has an `idleTrigger`."""
    entries = _sources(folder, batch)
    return max((int(one[LOOKED]) for one in entries if LOOKED in one), default=None)


def offsets(folder: str, batch: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Where a micro-batch of one source begins, and where it ends; None where that is not known."""
    ends, begins = _sources(folder, batch)[1:], _sources(folder, batch - 1)[1:]
    return (begins[0] if begins else {}, ends[0]) if len(ends) == 1 and (begins or not batch) else None


def begun_at(folder: str, batch: int) -> int:
    """When a micro-batch was planned, in milliseconds since 1970. It stays so when it is done again."""
    metadata = _sources(folder, batch)[0]
    return int(metadata["batchTimestampMs"])


def last_commit(folder: str) -> int:
    """The last micro-batch that Spark is done with; -1 where there is none."""
    return max(checkpoint_files.numbers(f"{folder}/commits"), default=-1)


def last_ends(folder: str) -> dict[str, int] | None:
    """The next offset of each topic after the last micro-batch that Spark has planned; None where that is not known."""
    ends = _sources(folder, max(checkpoint_files.numbers(f"{folder}/offsets"), default=-1))[1:]
    return {str(name): int(offset) for name, offset in _by_topic(ends[0]).items()} if len(ends) == 1 else None


def query_id(folder: str) -> str:
    """The query's id, which it keeps as long as its checkpoint."""
    return str((checkpoint_files.read(folder, "metadata") or {}).get("id", ""))


def is_empty(folder: str, batch: int) -> bool:
    """Whether a micro-batch is known to have no messages: it ends where it begins."""
    ends, begins = _sources(folder, batch)[1:], _sources(folder, batch - 1)[1:]
    new = any(NEW_TOPICS in one for one in ends)
    return bool(ends) and not new and list(map(_by_topic, ends)) == list(map(_by_topic, begins))


def _sources(folder: str, batch: int) -> list[dict[str, Any]]:
    """Metadata, and the offsets of each source."""
    text = checkpoint_files.content(folder, f"offsets/{batch}") or b""
    return [json.loads(line) for line in text.splitlines() if line.startswith(b"{")]


def _by_topic(offsets: dict[str, Any]) -> dict[str, Any]:
    return {name: offset for name, offset in offsets.items() if " " not in name}


class Checkpoint:
    """The checkpoint of a query that runs, where it is a folder of this machine; others look after themselves."""

    def __init__(self, place: str | None) -> None:
        self._folder = None if place is None else disk.folder_of(place)
        self._synced: int | None = None
        folder = self._folder or Path()
        self._tree = disk.Tree(folder)
        self._offsets, self._root = disk.Tree(folder / "offsets"), disk.Tree(folder, deep=False)

    def sync_plan(self) -> None:
        """The offsets of the micro-batch that begins stay, and the name of the query, which sinks know it by."""
        if self._folder is not None:
            self.sync_all()
            self._offsets.sync()
            self._root.sync()

    def sync_all(self) -> None:
        """All that belongs to the micro-batches that are done stays."""
        if self._folder is None or not self._folder.is_dir():
            return
        newest = max(_entries(self._folder / "commits"), default=-1)
        if newest != self._synced:
            self._tree.sync()
            checkpoint_files.write(str(self._folder), SYNCED, {"commit": newest, "boot": disk.boot()})
            self._synced = newest


def recover(place: str) -> None:
    """Removes from a checkpoint what was not synced before the system was started anew."""
    folder = disk.folder_of(place)
    known = None if folder is None else checkpoint_files.read(str(folder), SYNCED)
    if folder is None or (known is not None and known["boot"] == disk.boot()):
        return
    kept = -1 if known is None else known["commit"]
    for name in ("offsets", "commits"):
        for number in _entries(folder / name):
            if number > kept:
                again = name == "commits" and known is not None
                _remove(
                    folder / name, number, checksum_only=not again and _is_whole(folder / name / str(number))
                )


def _entries(log: Path) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(one.name) for one in log.iterdir() if one.name.isdecimal()]
    return []


def _remove(log: Path, number: int, *, checksum_only: bool = False) -> None:
    for name in [f".{number}.crc", *([] if checksum_only else [str(number)])]:
        (log / name).unlink(missing_ok=True)


def _is_whole(entry: Path) -> bool:
    """Whether Spark can read it: a line with a version, and lines of JSON."""
    version, *lines = entry.read_bytes().split(b"\n")
    try:
        return version.startswith(b"v") and bool(lines) and all(_is_json(line) for line in lines)
    except ValueError:
        return False


def _is_json(line: bytes) -> bool:
    if line != b"-":  # a source that has no offsets yet
        json.loads(line)
    return True
