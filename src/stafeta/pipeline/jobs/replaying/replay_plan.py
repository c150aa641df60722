"""What a replay consists of, fixed when it begins.

1. A replay is a set of messages: offsets of topics, within times. The lake may be compacted, and grow, meanwhile: the
   set stays the same, and so does its order, by time, topic and offset.
2. It is cut into portions, each from one place in that order up to the next.
3. A plan is written down before the first message is sent, so that a replay that was killed goes on with the same
   portions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as sf

from stafeta.errors import ConfigError
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.jobs.replaying.request import TOPIC, Request
from stafeta.pipeline.local_frame import local_frame
from stafeta.ranges import within

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER: Final = ("timestamp", "topic", "offset")
SAMPLES: Final = 20  # for each portion that is cut


class ReplayKey(NamedTuple):
    """A place in the order of a replay; the time is in microseconds since 1970."""

    time: int
    topic: str
    offset: int


@dataclass(frozen=True)
class Plan:
    request: Request
    ranges: dict[str, list[tuple[int, int]]]
    """The offsets of each topic."""
    cuts: tuple[ReplayKey, ...]
    """Where all portions but the first begin."""
    sizes: tuple[int, ...]
    """About how many messages each portion has; all of them together exactly."""
    begin: int
    """The time of the first message."""
    lake: str = ""
    """The id of the lake, which a plan of earlier versions does not have."""

    @property
    def producer(self) -> str:
        """What is added to the name of the replay where it is known at the broker. Another lake's replay of this name,
        and another plan, made after one was removed, are other producers: their portions are not these."""
        if not self.lake:
            return ""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return "/" + blake2b(content, digest_size=8).hexdigest()

    @property
    def messages(self) -> int:
        return sum(self.sizes)

    @property
    def portions(self) -> int:
        return len(self.cuts) + 1

    def edges(self, portion: int) -> tuple[ReplayKey | None, ReplayKey | None]:
        """Where a portion begins and ends."""
        return (
            self.cuts[portion - 1] if portion else None,
            self.cuts[portion] if portion < len(self.cuts) else None,
        )

    def times(self, portion: int) -> tuple[int | None, int | None]:
        """The first and the last time that messages of a portion can have."""
        low, high = self.edges(portion)
        until = None if self.request.until is None else self.request.until - 1
        return self.request.since if low is None else low.time, until if high is None else high.time

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Plan":
        """What was written down with `asdict`."""
        return cls(
            Request(**stored["request"]),
            {topic: [(start, stop) for start, stop in runs] for topic, runs in stored["ranges"].items()},
            tuple(ReplayKey(*one) for one in stored["cuts"]),
            tuple(stored["sizes"]),
            stored["begin"],
            stored.get("lake", ""),
        )


class PlanStore:
    """Where the plans of replays are kept: `replays` in the lake's warehouse."""

    def __init__(self, warehouse: str) -> None:
        self._folder = f"{warehouse}/replays"

    def read(self, name: str) -> Plan | None:
        """The plan of a replay that has begun."""
        try:
            stored = checkpoint_files.read(self._folder, f"{name}.json")
            return None if stored is None else Plan.of(stored)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{self._folder}/{name}.json is no plan of a replay; remove it, or choose another --name."
            ) from None

    def write(self, name: str, plan: Plan) -> None:
        """Writes it whole, or not at all."""
        checkpoint_files.write(self._folder, f"{name}.json", asdict(plan))


def ranges_of(
    archived: dict[str, list[tuple[int, int]]], request: Request
) -> dict[str, list[tuple[int, int]]]:
    """What of the archived offsets is asked for."""
    chosen = {}
    for topic, runs in archived.items():
        if request.wants(topic) and (left := within(runs, request.from_offset, request.to_offset)):
            chosen[topic] = left
    return chosen


def chosen(messages: "DataFrame", ranges: dict[str, list[tuple[int, int]]], request: Request) -> "DataFrame":
    """The messages with these offsets, within the times that are asked for."""
    rows = [(topic, [*runs]) for topic, runs in ranges.items()]
    columns = "topic string, runs array<struct<start: bigint, stop: bigint>>"
    wanted = local_frame(messages.sparkSession, rows, columns)
    inside = "exists(runs, one -> offset >= one.start AND offset < one.stop)"
    found = messages.join(sf.broadcast(wanted), "topic").where(inside).drop("runs")
    if request.since is not None:
        found = found.where(sf.col("timestamp") >= _time(request.since))
    if request.until is not None:
        found = found.where(sf.col("timestamp") < _time(request.until))
    return found


def measured(messages: "DataFrame") -> tuple[int, int, int]:
    """How many messages there are, the time of the first (0 where there is none), and the bytes of their payloads."""
    size = sf.coalesce(sf.sum(sf.octet_length("payload")), sf.lit(0))
    count, begin, bytes_ = messages.agg(sf.count("*"), sf.min(sf.unix_micros("timestamp")), size).collect()[0]
    return int(count), int(begin or 0), int(bytes_)


def sampled(messages: "DataFrame", size: int) -> list[ReplayKey]:
    """Places in the order of messages, some for each portion of this size."""
    some = messages.select(*ORDER).sample(min(1.0, SAMPLES / size))
    return sorted(ReplayKey(*row) for row in some.select(sf.unix_micros("timestamp"), *ORDER[1:]).collect())


def cut(samples: Sequence[ReplayKey], count: int, size: int) -> tuple[tuple[ReplayKey, ...], tuple[int, ...]]:
    """Parts so many messages into portions of about this size: where all but the first begin, and about how many each
    has."""
    portions = -(-count // size)
    cuts: list[ReplayKey] = []
    ends: list[int] = []
    for number in range(1, portions):
        at = number * len(samples) // portions
        if at < len(samples) and samples[at] > (cuts[-1] if cuts else samples[0]):
            cuts.append(samples[at])
            ends.append(count * at // len(samples))
    edges = [0, *ends, count]
    return tuple(cuts), tuple(stop - start for start, stop in pairwise(edges))


def portion(messages: "DataFrame", low: ReplayKey | None, high: ReplayKey | None) -> "DataFrame":
    """The messages from one place up to, not including, another, in order."""
    if low is not None:  # the time alone is what files are skipped by
        messages = messages.where((sf.col("timestamp") >= _time(low.time)) & (_key() >= _literal(low)))
    if high is not None:
        messages = messages.where((sf.col("timestamp") <= _time(high.time)) & (_key() < _literal(high)))
    return messages.orderBy(*ORDER)


def outgoing(messages: "DataFrame", request: Request, *, timestamp: bool = False) -> "DataFrame":
    """The columns that are sent; with the timestamp, where the messages keep theirs or it is wanted."""
    pieces = request.into.split(TOPIC)
    parts: list[Column] = [sf.lit(pieces[0])]
    for piece in pieces[1:]:
        parts += [sf.col("topic"), sf.lit(piece)]
    columns = [sf.concat(*parts).alias("topic"), sf.col("payload"), sf.col("kind")]
    return messages.select(*columns, *(["timestamp"] if timestamp or request.keep_times else []))


def _key() -> "Column":
    return sf.struct(*ORDER)


def _literal(place: ReplayKey) -> "Column":
    return sf.struct(
        _time(place.time).alias("timestamp"),
        sf.lit(place.topic).alias("topic"),
        sf.lit(place.offset).cast("bigint").alias("offset"),
    )


def _time(micros: int) -> "Column":
    return sf.timestamp_micros(sf.lit(micros))
