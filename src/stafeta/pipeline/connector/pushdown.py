"""The filters that Spark passes to a source, and what they narrow a batch read to. (docs/spark.md, "Filters")

1. All filters hold together. One is either understood, and then applied here to the last row, or handed back to Spark.
2. Understood are, on `topic`: =, <=>, IN and LIKE 'a%'; on `offset` and `timestamp`: =, <=>, IN, <, <=, > and >=; and
   IS NOT NULL on each column that never is.
3. Spark gives column names as they are in the schema, and values in the type of the column: text, whole numbers, and
   datetimes in UTC, whatever the session's zone. Any other value (a null, above all) makes a filter Spark's own.
4. Topics and offsets are applied by reading nothing else. Timestamps need not grow with the offsets: a producer may set
   them. So they are looked at in each row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from stafeta.message import COLUMNS
from stafeta.times import micros_of

NEVER_NULL: Final = frozenset(COLUMNS)
_LONG: Final = 2**63


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` to `high`, both included, where there are such; of these, if given, `only` some."""

    low: int | None = None
    high: int | None = None
    only: frozenset[int] | None = None

    @property
    def empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high

    def both(self, other: "Span") -> "Span":
        """What is in this one and in the other."""
        low = max((one for one in (self.low, other.low) if one is not None), default=None)
        high = min((one for one in (self.high, other.high) if one is not None), default=None)
        sets = [one for one in (self.only, other.only) if one is not None]
        if not sets:
            return Span(low, high)
        return Span.of(
            number
            for number in frozenset.intersection(*sets)
            if (low is None or low <= number) and (high is None or number <= high)
        )

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Span":
        """These numbers."""
        only = frozenset(numbers)
        if not only:
            return _NOTHING
        low, high = min(only), max(only)
        return cls(low, high, None if high - low + 1 == len(only) else only)


_NOTHING: Final = Span(0, -1)


@dataclass(frozen=True)
class Wanted:
    """What a read is narrowed to; at first, everything."""

    topics: frozenset[str] | None = None
    prefixes: frozenset[str] = frozenset()
    offset: Span = field(default_factory=Span)
    timestamp: Span = field(default_factory=Span)

    def topic(self, name: str) -> bool:
        """Whether anything of this topic may be wanted."""
        return (
            (self.topics is None or name in self.topics)
            and all(map(name.startswith, self.prefixes))
            and not self.offset.empty
            and not self.timestamp.empty
        )

    def offsets(self, first: int, next: int) -> tuple[int, int]:
        """Of the offsets from `first` up to, not including, `next` those to read, likewise; (first, first) for none."""
        low, high = self.offset.low, self.offset.high
        start = first if low is None else max(first, low)
        stop = next if high is None else min(next, high + 1)
        return (start, stop) if start < stop else (first, first)

    @property
    def since(self) -> int | None:
        """The earliest timestamp wanted, in microseconds since 1970. What comes before the first message that is not
        older need not be read."""
        return self.timestamp.low

    @property
    def until(self) -> int | None:
        """The latest timestamp wanted, itself included. Messages after the first later one may be wanted all the same
        (rule 4)."""
        return self.timestamp.high

    @property
    def columns(self) -> frozenset[str]:
        """The columns that `rows` looks at."""
        found = {"offset": self.offset.only is not None, "timestamp": self.timestamp != Span()}
        return frozenset(name for name, needed in found.items() if needed)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows wanted of a batch that was read from a wanted topic within the wanted offsets: the batch itself, if
        all are."""
        masks = [
            *_masks(batch, "offset", Span(only=self.offset.only)),
            *_masks(batch, "timestamp", self.timestamp),
        ]
        if not masks:
            return batch
        mask = reduce(pc.and_, masks)
        return batch if mask.true_count == len(mask) else batch.filter(mask)


def narrowed(filters: Sequence[Filter]) -> tuple[Wanted, list[Filter]]:
    """What is wanted by the filters that are understood, and the other ones, which are left to Spark."""
    wanted = Wanted()
    rest: list[Filter] = []
    for one in filters:
        found = _narrowed(wanted, one)
        if found is None:
            rest.append(one)
        else:
            wanted = found
    return wanted, rest


def _narrowed(wanted: Wanted, one: Filter) -> Wanted | None:
    match one:
        case IsNotNull((name,)) if name in NEVER_NULL:
            return wanted
        case StringStartsWith(("topic",), str(prefix)):
            return replace(wanted, prefixes=wanted.prefixes | {prefix})
        case EqualTo(("topic",), str(topic)) | EqualNullSafe(("topic",), str(topic)):
            return _of_topics(wanted, [topic])
        case In(("topic",), topics) if all(isinstance(topic, str) for topic in topics):
            return _of_topics(wanted, topics)
    match getattr(one, "attribute", None):
        case ("offset",) if (span := _span(one, _whole)) is not None:
            return replace(wanted, offset=wanted.offset.both(span))
        case ("timestamp",) if (span := _span(one, _instant)) is not None:
            return replace(wanted, timestamp=wanted.timestamp.both(span))
    return None


def _of_topics(wanted: Wanted, topics: Iterable[str]) -> Wanted:
    named = frozenset(topics)
    return replace(wanted, topics=named if wanted.topics is None else wanted.topics & named)


def _span(one: Filter, number: Callable[[object], int | None]) -> Span | None:
    """What a comparison leaves; None where it is none, or one with a value that has no such number."""
    match one:
        case EqualTo(_, value) | EqualNullSafe(_, value) if (n := number(value)) is not None:
            return Span.of([n])
        case LessThan(_, value) if (n := number(value)) is not None:
            return Span(high=n - 1)
        case LessThanOrEqual(_, value) if (n := number(value)) is not None:
            return Span(high=n)
        case GreaterThan(_, value) if (n := number(value)) is not None:
            return Span(low=n + 1)
        case GreaterThanOrEqual(_, value) if (n := number(value)) is not None:
            return Span(low=n)
        case In(_, values):
            numbers = [n for n in map(number, values) if n is not None]
            return Span.of(numbers) if len(numbers) == len(values) else None
    return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and -_LONG <= value < _LONG else None


def _instant(value: object) -> int | None:
    """Microseconds since 1970. A datetime without a zone is no instant."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return None
    return micros_of(value)


def _masks(batch: pa.RecordBatch, name: str, span: Span) -> list[Any]:
    """Which rows have a value in the span, as masks that all have to be true."""
    if span == Span():
        return []
    column: Any = batch.column(name)
    if span.only is not None:
        return [pc.is_in(column, value_set=pa.array(sorted(span.only), column.type))]
    bounds = ((pc.greater_equal, span.low), (pc.less_equal, span.high))
    return [compare(column, pa.scalar(bound, column.type)) for compare, bound in bounds if bound is not None]
