"""Which offsets are to be read, and by how many tasks.

1. What is to be read is parted among about `FEW` tasks, but a task reads at least `LEAST` and at most `MOST` bytes: a
   part of a large topic, or several small topics.
2. Where the order of topics does not matter, each task reads a part of every topic, in the order of the log: topics
   that are published together lie in the same blocks of the broker's, which are then loaded once. Of more topics than
   can be asked for at once each task has some.
3. Opening a topic costs as much as reading `OPENING` bytes, so that a task does not open too many.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from stafeta.errors import DataLoss
from stafeta.message import ROW
from stafeta.ranges import without

if TYPE_CHECKING:
    from stafeta.clients.flight.connection import Connection

FEW: Final = 4  # a planner does not know how many tasks can run side by side
LEAST: Final = 8 << 20
MOST: Final = 128 << 20  # as of files (spark.sql.files.maxPartitionBytes)
OPENING: Final = 64 << 10
TOGETHER: Final = (
    500  # ranges that are asked for at once; a ticket of the broker's has room for some thousand
)
USUAL: Final = 100  # bytes of a payload, where the broker does not tell


class Held(NamedTuple):
    """What the broker holds of a topic: offsets from `first` up to, not including, `next`."""

    topic: str
    first: int
    next: int
    start: int
    """Where the times that were asked for begin, and end."""
    stop: int
    weight: float
    """About how many bytes a message takes."""
    skipped: Sequence[tuple[int, int]] = ()
    """Offsets that have no messages."""


class Range(NamedTuple):
    """Offsets of a topic, from `start` up to, not including, `stop`."""

    topic: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass
class Task(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]
    together: bool = field(default=False, kw_only=True)
    """Whether they are read in the order of the log, and not one after the other."""


def held(
    connection: "Connection", filters: Iterable[str], since: int | None = None, until: int | None = None
) -> dict[str, Held]:
    """The topics that match, by name; `since` and `until` are times."""
    times = {"from_time": since, "to_time": until}
    found: dict[str, Held] = {}
    for filter_ in filters:
        asked = {key: time for key, time in times.items() if time is not None}
        info: Any = connection.describe({"filter": filter_, **asked})
        edges: dict[str, tuple[int, int]] = {}
        for endpoint in info.endpoints:  # a topic's lie side by side
            ticket = json.loads(endpoint.ticket.ticket)
            start, _ = edges.get(ticket["topic"], (ticket["from"], 0))
            edges[ticket["topic"]] = start, ticket["to"]
        for one in json.loads(info.app_metadata)["topics"]:
            known = one["rows"] and one["bytes"] >= 0
            weight = ROW + (one["bytes"] / one["rows"] if known else USUAL)
            skipped = [(start, stop) for start, stop in one.get("skipped", ())]
            found[one["topic"]] = Held(
                one["topic"], one["first"], one["next"], *edges[one["topic"]], weight, skipped
            )
    return dict(sorted(found.items()))


def checked(wanted: Range, topic: Held | None, *, fail: bool) -> Range:
    """The part of a range that is still there. Where some of it is not, that is an error, or is passed over."""
    first, end = (wanted.stop, wanted.stop) if topic is None else (topic.first, topic.next)
    start = min(max(wanted.start, first), wanted.stop)
    there = Range(wanted.topic, start, max(start, min(wanted.stop, end)))
    outside = [(wanted.start, there.start), (there.stop, wanted.stop)]
    gone = without(outside, () if topic is None else topic.skipped)
    if gone and fail:
        raise lost(wanted, sum(stop - start for start, stop in gone))
    return there


def present(ranges: Iterable[Range], topics: Mapping[str, Held]) -> list[Range]:
    """The ranges without what is skipped."""
    return [
        Range(one.topic, start, stop)
        for one in ranges
        for start, stop in without([(one.start, one.stop)], topics[one.topic].skipped if one.rows > 0 else ())
    ]


def lost(wanted: Range, count: int) -> DataLoss:
    return DataLoss(
        f"{count} of the messages {wanted.start} to {wanted.stop - 1} of topic {wanted.topic!r} are gone before they "
        "were read. Let the query hold them (option 'durable') or the topic keep them (its retention), or pass over "
        "what is gone with option failOnDataLoss=false."
    )


def tasks(
    ranges: Iterable[Range],
    topics: Mapping[str, Held],
    min_partitions: int = 1,
    max_records: int | None = None,
) -> list[Task]:
    """The ranges, parted among tasks in the order in which they are given."""
    wanted = [(one, topics[one.topic].weight) for one in present(ranges, topics)]
    rows = sum(one.rows for one, _ in wanted)
    total = sum(one.rows * weight for one, weight in wanted) + OPENING * max(0, len(wanted) - FEW)
    parting = _Parting(min(max(total / FEW, LEAST), MOST), rows, min_partitions, max_records or rows)
    for one, weight in wanted:
        parting.add(one, weight)
    return parting.tasks


def slices(ranges: Iterable[Range], topics: Mapping[str, Held]) -> list[Task]:
    """The ranges, parted among tasks that read theirs in the order of the log: each a part of every range, or where
    they are too many for that, some. None where there is but one range."""
    wanted = present(ranges, topics)
    if len(wanted) < 2:
        return []
    if len(wanted) > TOGETHER:
        return [Task(task.ranges, together=True) for task in tasks(wanted, topics)]
    total = sum(one.rows * topics[one.topic].weight for one in wanted)
    count = math.ceil(total / min(max(total / FEW, LEAST), MOST))
    found = []
    for at in range(count):
        parts = [
            Range(one.topic, one.start + one.rows * at // count, one.start + one.rows * (at + 1) // count)
            for one in wanted
        ]
        found.append(Task(tuple(part for part in parts if part.rows), together=True))
    return [task for task in found if task.ranges]


class _Parting:
    """Tasks in the making; the last of them is being filled."""

    def __init__(self, share: float, rows: int, min_partitions: int, max_records: int) -> None:
        self.tasks: list[Task] = []
        self._share = share
        self._rows_left = rows
        self._least = min_partitions
        self._most = max_records
        self._room = 0.0
        self._places = 0

    def add(self, one: Range, weight: float) -> None:
        start = one.start
        while start < one.stop:
            if self._places < 1 or self._room < weight:
                self._next()
            count = min(one.stop - start, self._places, max(1, int(self._room / weight)))
            task = self.tasks[-1]
            task.ranges = (*task.ranges, Range(one.topic, start, start + count))
            self._room -= count * weight + OPENING
            self._places -= count
            self._rows_left -= count
            start += count

    def _next(self) -> None:
        more = max(1, self._least - len(self.tasks))  # tasks that have to share what is left
        self._places = min(self._most, -(-self._rows_left // more) if more > 1 else self._most)
        self._room = self._share
        self.tasks.append(Task(()))
