"""Which offsets of each topic are in the table `messages`, and which never will be.

1. They are in *lists*: JSON files in the table's folder that are written once and never changed. The table's property
   `stafeta.archived` names those that count, so that one commit changes files and offsets together.
2. A commit writes a list of what it adds. It takes the lists before it that are not much longer into its own, so that
   each is more than twice as long as the next: there are few, and a commit writes about as much as it adds.
3. The data files are what counts. A list that is gone, or damaged by the checksum in its name, is made again from them.
4. Before there were lists the property had the offsets themselves. It is read as before, and becomes a list with the
   next commit.
"""

import json
import logging
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pyiceberg.table import Table

from stafeta.errors import StoreDamaged
from stafeta.pipeline.lake import files
from stafeta.ranges import Ranges, total, union, united

ARCHIVED: Final = "stafeta.archived"
FOLDER: Final = "archived"

log = logging.getLogger(__name__)


class Known(NamedTuple):
    """What is known of topics' offsets."""

    archived: Ranges
    """They are in the table."""
    absent: Ranges
    """They are not, and nobody waits for them: gone before the archive began, or accepted as lost."""

    @property
    def done(self) -> Ranges:
        """What the archive need not read."""
        return united(self.archived, self.absent)

    def plus(self, other: "Known") -> "Known":
        return Known(united(self.archived, other.archived), united(self.absent, other.absent))

    def of(self, topics: Collection[str]) -> "Known":
        """Of these topics alone."""
        return Known(*({topic: one[topic] for topic in topics if topic in one} for one in self))


NOTHING: Final = Known({}, {})


class _List(NamedTuple):
    name: str
    length: int
    """How many ranges are in it."""


def known_in(table: Table, topics: Collection[str] | None = None) -> Known:
    """What is known of all topics, or of some, which is quicker."""
    made = NOTHING
    for one in _lists(table):
        made = made.plus(one if topics is None else one.of(topics))
    return made


def added(table: Table, new: Known) -> str:
    """Writes a list of what a commit is to add; returns the property that the commit is to set."""
    value = _property(table)
    entries: list[_List] = []
    try:
        if isinstance(value, dict):
            new = _old(value).plus(new)
        else:
            entries = [_List(*one) for one in value]
            while entries and entries[-1].length <= 2 * _length(new):
                new = _read(_url(table, entries[-1].name)).plus(new)
                entries.pop()
            for one in entries:  # they can be read
                _read(_url(table, one.name))
    except (OSError, ValueError) as error:
        new, entries = _rebuilt(table, error).plus(new), []
    data = json.dumps(new._asdict(), separators=(",", ":")).encode()
    name = f"{uuid.uuid4().hex}-{_checksum(data)}.json"
    with files.create(_url(table, name)) as sink:  # on the disk before the commit names it
        sink.write(data)
    return json.dumps([*entries, _List(name, _length(new))], separators=(",", ":"))


def urls(table: Table) -> set[str]:
    """The lists that the table has."""
    value = _property(table)
    return set() if isinstance(value, dict) else {_url(table, name) for name, _ in value}


def _lists(table: Table) -> Iterator[Known]:
    value = _property(table)
    if isinstance(value, dict):
        return iter([_old(value)])
    try:
        return iter([_read(_url(table, name)) for name, _ in value])
    except (OSError, ValueError) as error:
        return iter([_rebuilt(table, error)])


def _property(table: Table) -> Any:
    return json.loads(table.properties.get(ARCHIVED, "[]"))


def _old(value: Mapping[str, Any]) -> Known:
    return _of_archived(_ranges(value))


def _of_archived(archived: Ranges) -> Known:
    """What is known of topics that say what is archived alone: what is before it was gone when the archive began."""
    return Known(archived, {topic: [(1, runs[0][0])] for topic, runs in archived.items() if runs[0][0] > 1})


def known_in_files(urls: Iterable[str]) -> Known:
    """What files say without lists, whatever is in them twice."""
    found: Ranges = {}
    for topic, start, stop in files.stored_runs(urls):
        found.setdefault(topic, []).append((start, stop))
    return _of_archived({topic: union(runs) for topic, runs in found.items()})


def _rebuilt(table: Table, error: Exception) -> Known:
    log.warning("A list of what is archived cannot be read (%s): the lake's files are read instead.", error)
    try:
        return _of_archived(files.ranges(task.file.file_path for task in table.scan().plan_files()))
    except (OSError, ValueError) as worse:  # of PyArrow's the latter
        raise StoreDamaged(
            f"What is archived is not known: a list of it cannot be read ({error}), nor can the lake's files "
            f"({worse}). Restore the lake from a backup; audit says what is missing."
        ) from None


@lru_cache(maxsize=64)
def _read(url: str) -> Known:
    system, path = files.place(url)
    with system.open_input_stream(path) as stream:
        data = stream.read()
    if not path.endswith(f"-{_checksum(data)}.json"):
        raise ValueError(f"{url} is damaged")
    value = json.loads(data)
    return Known(_ranges(value["archived"]), _ranges(value["absent"]))


def _ranges(value: Mapping[str, Any]) -> Ranges:
    return {topic: [(int(start), int(stop)) for start, stop in runs] for topic, runs in value.items()}


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _length(known: Known) -> int:
    return total(known.archived) + total(known.absent)


def _url(table: Table, name: str) -> str:
    return f"{table.location()}/{FOLDER}/{name}"
