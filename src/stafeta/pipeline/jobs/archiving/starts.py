"""Where the archive begins, by what the lake lacks.

1. A topic's offsets begin with 1. All up to its end are to be in the lake, but for those that are known to be absent.
2. What the lake lacks and the log has is read, wherever it lies: reading begins at the first such offset. What comes
   after it and is in the lake already is not added again.
3. What the broker says is skipped has no messages, and is absent: it was damaged, or a backup was restored.
4. What neither has was *gone* before the archive began, if the archive never held the topic and has nothing of it.
   Otherwise it is *lost*: the lake or the log is an older one, or somebody let go of it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from stafeta.errors import DataLoss
from stafeta.pipeline.lake.archived import Known
from stafeta.ranges import Ranges, count, first_missing, union, united, without


class Topic(Protocol):
    """What the log has of a topic: offsets from `first` up to, not including, `next`."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def skipped(self) -> Sequence[tuple[int, int]]: ...


class Plan(NamedTuple):
    starts: dict[str, int]
    """Where each topic is read from, of the lake's as well as of the log's."""
    gone: Ranges
    lost: Ranges


def plan(topics: Mapping[str, Topic], known: Known, held: Collection[str]) -> Plan:
    """How to go on with the topics of the log, where these are known, and were held for the archive before."""
    gone: Ranges = {}
    lost: Ranges = {}
    done = known.done
    for name, topic in topics.items():
        archived = known.archived.get(name, [])
        if archived and topic.next < archived[-1][1]:
            raise DataLoss(
                f"Topic {name} ends with message {topic.next - 1}, but {archived[-1][1] - 1} is in the lake: the "
                "broker's data is not what was archived there. Archive it into another lake, or another lake.namespace."
            )
        skipped = list(topic.skipped)
        if nowhere := without([(1, topic.first)], [*done.get(name, ()), *skipped]):
            (lost if archived or name in held else gone)[name] = nowhere
        if skipped := without(skipped, done.get(name, ())):
            gone[name] = union([*gone.get(name, ()), *skipped])
    done = united(done, united(gone, lost))
    return Plan({name: first_missing(done.get(name, ())) for name in sorted({*done, *topics})}, gone, lost)


def sentence(lost: Ranges) -> str:
    """What to say of messages that are lost."""
    topic, runs = min(lost.items())
    start, stop = runs[0]
    others = count(lost) - (stop - start)
    more = f" (and {others:,} more, of {len(lost):,} topics)" if others else ""
    what = f"message {start}" if stop == start + 1 else f"messages {start} to {stop - 1}"
    return (
        f"Neither the lake nor the log has {what} of topic {topic}{more}: one of them is older than it was, or was "
        "changed. Put back the lake or the broker's data that has them; or go on without them, with: stafeta pipeline "
        "run archive --accept-loss."
    )
