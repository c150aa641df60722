"""One table over lake and log.

1. What the lake has is read from the lake, everything else from the log: no gap and no overlap, also while the archive
   goes on and the broker collects. What is archived stays in the log for a grace period (`pipeline.grace`); a query
   that takes longer and misses something fails, and says so.
2. A DataFrame is a snapshot: of the lake as of when it is made, of the log as of when it is first used.
3. Which offsets of a topic there are is known without reading a message: whoever needs topics and offsets alone, as to
   count them, gets them from the list of what is archived and the ends of the log.
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from stafeta.errors import ConfigError
from stafeta.message import COLUMNS as OF_A_MESSAGE
from stafeta.names import filters_of, matcher, pattern_of
from stafeta.pipeline.connector.spark_schema import PLAIN
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.archived import NOTHING, Known, known_in
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.local_frame import local_frame
from stafeta.pipeline.sql.results import VIEWS
from stafeta.ranges import Ranges, first_missing, union, united, within, without

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from stafeta.clients.flight.connection import TopicInfo
    from stafeta.config import Config

COLUMNS: Final = (*TABLES["messages"].names, "text")
READINGS: Final = (*OF_A_MESSAGE[:-1], "number", "decimal")
DECODED: Final = {"number": "double", "decimal": "decimal(38,18)"}
_TOLD: Final = {"numeric": "boolean"}  # by the log's source, which is cheaper than to compare kinds
NUMBERS: Final = ("int", "short_real", "float")
_COUNTED: Final = frozenset(("topic", "offset"))  # what is known without reading messages
UNKNOWN: Final = "This column was not read."
_EMPTY: Final = {
    "string": "''",
    "binary": "X''",
    "bigint": "0L",
    "timestamp": "TIMESTAMP '1970-01-01 00:00:00Z'",
}
_CHUNK: Final = 1 << 16  # offsets that a task makes at once
_TASKS: Final = 16  # at most, that make them
# In SQL, in which a frame takes all of its columns at once: made one by one each is ten calls to the JVM.
_DIGITS: Final = "CAST(payload AS string)"
_FITTING: Final = "^-?0*[0-9]{1,20}([.][0-9]{1,18}0*)?$"  # what decimal(38, 18) holds
_TEXT: Final = f"CASE WHEN kind != 'bytes' THEN {_DIGITS} END AS text"
_IS_NUMBER: Final = f"kind IN ({', '.join(map(repr, NUMBERS))})"
_MADE: Final = {
    "number": f"try_cast({_DIGITS} AS double) AS number",
    "decimal": f"CASE WHEN {_DIGITS} RLIKE '{_FITTING}' THEN try_cast({_DIGITS} AS decimal(38, 18)) END AS decimal",
}

logger = logging.getLogger(__name__)


def messages(
    spark: "SparkSession",
    config: "Config | None" = None,
    *,
    subscribe: str = "#",
    columns: Sequence[str] = COLUMNS,
) -> "DataFrame":
    """All messages of the topics that match: the columns of the lake's table `messages`, and `text`. Naming the columns
    that are needed makes it quicker."""
    _check(columns, COLUMNS)
    frame, _ = _views(spark, config, subscribe, columns)
    return frame.selectExpr(*(_TEXT if name == "text" else name for name in columns))


def readings(
    spark: "SparkSession",
    config: "Config | None" = None,
    *,
    subscribe: str = "#",
    columns: Sequence[str] = READINGS,
) -> "DataFrame":
    """The messages that are numbers."""
    _check(columns, READINGS)
    _, frame = _views(spark, config, subscribe, [*columns, "kind"])
    return frame.select(*columns)


def register(
    spark: "SparkSession",
    config: "Config | None" = None,
    *,
    subscribe: str = "#",
    columns: Collection[str] = (*COLUMNS, *READINGS),
    log: bool = True,
) -> None:
    """Makes the temporary views `messages` and `readings` (and `rollups` and `dead`, if the lake has them) as of now.
    `columns` are those that are needed: others are empty as far as they would come from the log, and of the lake too
    where topics and offsets are all that is needed. Without `log` the views
    are the lake alone."""
    stored = Stored(spark, config or _default(), subscribe, log=log)
    _warn(stored)
    stored.register(columns, decoded=_decodes(columns))


def numbers(frame: "DataFrame", names: Sequence[str] = READINGS) -> "DataFrame":
    """Of messages those that are numbers, with the columns `number` and `decimal`."""
    return frame.where(_IS_NUMBER).selectExpr(*(_MADE.get(name, name) for name in names))


class Stored:
    """Lake and log as of one instant, as frames with the columns that are needed. `log` says whether the log is looked
    at."""

    def __init__(
        self, spark: "SparkSession", config: "Config", subscribe: str = "#", *, log: bool = True
    ) -> None:
        self._spark = spark
        self._config = config
        self._subscribe = subscribe
        self._filters = filters_of(subscribe)
        self._log = log
        # The broker first: what it has collected by then is in the lake that is looked at afterwards.
        topics = _topics(config, self._filters) if log else {}
        lake = Lake(config.lake)
        self._tables = {name: table for name in TABLES if (table := lake.found(name)) is not None}
        self._frames: dict[str, DataFrame] = {}
        self._known = known_in(self._tables["messages"]) if "messages" in self._tables else NOTHING
        self._starts = starts_of(self._filters, topics, self._known)
        self._unread = {
            name: without([(self._starts[name], one.next)], one.skipped) for name, one in topics.items()
        }
        self.unarchived = sum(stop - start for runs in self._unread.values() for start, stop in runs)
        """So many messages are read of the log."""
        self.gone = list(gone_of(topics, self._known))
        """Which messages the lake lacks, and the log has no more: sentences."""

    def last(self, topic: str, count: int, least: int) -> "Stored | None":
        """The last messages of a topic alone, so many; None where it has less than `least` beside them."""
        archived, unread = self._known.archived.get(topic, []), self._unread.get(topic, [])
        runs = union([*archived, *unread])
        if sum(stop - start for start, stop in runs) < count + least or filters_of(topic) != [topic]:
            return None
        since = runs[-1][1]
        for start, stop in reversed(runs):
            since = max(start, stop - count)
            count -= stop - since
            if not count:
                break
        made = copy(self)
        made._subscribe, made._filters = topic, [topic]
        made._starts = {topic: max(self._starts.get(topic, since), since)}
        made._unread = {topic: within(unread, since, None)}
        if (past := self._past) is not None:
            found = past.where((sf.col("topic") == topic) & (sf.col("offset") >= since))
            made.__dict__["_past"] = found if archived and archived[-1][1] > since else None
        return made

    @cached_property
    def _past(self) -> "DataFrame | None":
        """What the lake has of the messages."""
        past = self._archived("messages")
        return past if past is None or self._subscribe in ("#", "*") else past.where(matching(self._filters))

    def _archived(self, name: str) -> "DataFrame | None":
        """A table of the lake: looked up when it is needed, as it was then."""
        if name in self._tables and name not in self._frames:
            self._frames[name] = Lake(self._config.lake).frame_of(self._spark, self._tables[name], name)
        return self._frames.get(name)

    def register(
        self,
        columns: Collection[str] = (*COLUMNS, *READINGS),
        *,
        decoded: bool = False,
        pushdown: bool = False,
        named: Collection[str] = VIEWS,
    ) -> None:
        """Makes the temporary views that are named. Columns that are not are empty as far as nothing is read for
        them."""
        if not {"messages", "readings"}.isdisjoint(named):
            stored, readings = self.views(columns, decoded=decoded, pushdown=pushdown)
            if "messages" in named:
                stored.selectExpr("*", _TEXT).createOrReplaceTempView("messages")
            if "readings" in named:
                readings.createOrReplaceTempView("readings")
        for name in ("rollups", "dead"):
            if name in named and (frame := self._archived(name)) is not None:
                frame.createOrReplaceTempView(name)

    def register_known(self) -> None:
        """Makes the view `messages` of what is known without reading a message: topics and offsets. A plan that uses
        another column of it has `UNKNOWN` in it, and fails."""
        types = TABLES["messages"].types | {"text": "string"}
        others = (f"CAST(raise_error('{UNKNOWN}') AS {type_})" for type_ in types.values())
        named = (
            name if name in _COUNTED else f"{other} AS {name}"
            for name, other in zip(types, others, strict=True)
        )
        self._runs().selectExpr(*named).createOrReplaceTempView("messages")

    def views(
        self, columns: Collection[str], *, decoded: bool = False, pushdown: bool = False
    ) -> "tuple[DataFrame, DataFrame]":
        """The messages, with the columns of the table, and those that are numbers, with the columns of `readings`, of
        lake and log. Of the log, columns that are not named are empty, and of the lake too, where it need not be read.

        What is `decoded` are the numbers of the log: a task makes them of Arrow's columns, which is several times as
        quick as Spark of each row. It does so of all that it reads, so it is for those who have named their columns.

        With `pushdown`, filters on topics, offsets and times decide what is read of the log. It is for one query, which
        has one of the views once: Spark keeps the filters of a scan, and would give another its rows."""
        names, table = _needed(columns, decoded=decoded), TABLES["messages"]
        live: DataFrame | None = None
        if known_unread(names):
            stored = _widened(self._runs(), names).select(*table.names)
        elif self._log:
            live = self._live(names, pushdown=pushdown)  # once, so that both see the same of it
            stored = live.select(*table.names)
            if self._past is not None:
                stored = self._past.unionByName(stored)
        elif self._past is not None:
            stored = self._past
        else:
            stored = local_frame(self._spark, [], table.columns)
        if live is None or not decoded:
            return stored, numbers(stored)
        readings = live.where(sf.col("numeric")).select(*READINGS)
        return stored, readings if self._past is None else numbers(self._past).unionByName(readings)

    def _runs(self) -> "DataFrame":
        """Topics and offsets of all messages, which are known without reading."""
        matches = [matcher(one) for one in self._filters]
        archived = {
            topic: runs
            for topic, runs in self._known.archived.items()
            if any(matches_it(topic) for matches_it in matches)
        }
        chunks = [
            (topic, low, min(low + _CHUNK, stop) - 1)
            for topic, runs in united(archived, self._unread).items()
            for start, stop in runs
            for low in range(start, stop, _CHUNK)
        ]
        columns = "topic string NOT NULL, low bigint NOT NULL, high bigint NOT NULL"
        frame = local_frame(self._spark, chunks, columns, tasks=_TASKS)
        return frame.selectExpr("topic", "explode(sequence(low, high)) AS offset")

    def _live(self, names: Sequence[str], *, pushdown: bool = False) -> "DataFrame":
        """What is in the log and not in the lake. All starts are named, those of the lake's topics too, which the log
        may have got since it was asked: what is gone when it is read is missed, not passed over."""
        again = {  # what the lake has after a gap
            topic: later
            for topic, start in self._starts.items()
            if (later := [run for run in self._known.archived.get(topic, ()) if run[1] > start])
        }
        read = dict.fromkeys((*names, *(("topic", "offset") if again else ())))
        options = {
            "broker": self._config.pipeline.broker,
            "subscribe": self._subscribe,
            "columns": ",".join(read),
            "startingOffsets": json.dumps(self._starts) if self._starts else "earliest",
            "pushdown": str(pushdown).lower(),
        }
        frame = self._spark.read.format("stafeta").options(**options).load()
        if again:
            frame = _except(frame, again)
        return _widened(frame, names)


def known_unread(names: Collection[str]) -> bool:
    """Whether these columns are known without reading a message."""
    return _COUNTED.issuperset(names)


def _widened(frame: "DataFrame", names: Collection[str]) -> "DataFrame":
    """The columns of the table `messages`, and decoded ones, empty where they are not named: null only where a message
    may have none, since Spark makes of count(payload), where that is never null, a count that does not name it."""
    types = TABLES["messages"].types | DECODED | _TOLD
    empty = {
        name: _EMPTY[type_] if name in PLAIN else f"CAST(NULL AS {type_})" for name, type_ in types.items()
    }
    return frame.selectExpr(*(name if name in names else f"{empty[name]} AS {name}" for name in types))


def _views(
    spark: "SparkSession", config: "Config | None", subscribe: str, columns: Collection[str]
) -> "tuple[DataFrame, DataFrame]":
    stored = Stored(spark, config or _default(), subscribe)
    _warn(stored)
    return stored.views(columns, decoded=_decodes(columns))


def _decodes(columns: Collection[str]) -> bool:
    """Whether numbers are needed, as far as somebody has said so: all columns are what one gets who names none."""
    return not {*columns}.isdisjoint(DECODED) and not {*columns}.issuperset(READINGS)


def _warn(stored: Stored) -> None:
    for sentence in stored.gone:
        logger.warning(sentence)


def _topics(config: "Config", filters: Iterable[str]) -> "dict[str, TopicInfo]":
    from stafeta import connect

    with connect(config.pipeline.broker) as broker:
        return {topic.topic: topic for one in filters for topic in broker.topics(one)}


def starts_of(filters: Iterable[str], topics: "Mapping[str, TopicInfo]", known: Known) -> dict[str, int]:
    """Where the log is read from: each topic's first offset that it may have and the lake lacks."""
    matches = [matcher(one) for one in filters]
    done = known.done
    starts = {}
    for name in sorted({*topics, *(topic for topic in done if any(one(topic) for one in matches))}):
        if name in topics:
            starts[name] = first_missing(known.archived.get(name, []), topics[name].first)
        else:
            starts[name] = first_missing(done[name])
    return starts


def gone_of(topics: "Mapping[str, TopicInfo]", known: Known) -> Iterator[str]:
    """Of topics that are archived, what the lake lacks and the log has no more."""
    done = known.done
    for name in sorted(known.archived.keys() & topics.keys()):
        first = topics[name].first
        for start, stop in without([(1, first)] if first > 1 else [], done[name]):
            yield f"The messages {start} to {stop - 1} of topic {name} are gone."


def _except(frame: "DataFrame", ranges: Ranges) -> "DataFrame":
    """The messages without these offsets."""
    rows = [(topic, [*runs]) for topic, runs in ranges.items()]
    columns = "topic string, runs array<struct<start: bigint, stop: bigint>>"
    others = local_frame(frame.sparkSession, rows, columns)
    inside = "exists(runs, one -> offset >= one.start AND offset < one.stop)"
    joined = frame.join(sf.broadcast(others), "topic", "left")
    return joined.where(f"runs IS NULL OR NOT {inside}").drop("runs")


def matching(filters: Iterable[str]) -> "Column":
    """Whether a row's topic matches one of the filters."""
    patterns = "|".join(dict.fromkeys(map(pattern_of, filters)))
    return sf.concat(sf.lit("/"), sf.col("topic")).rlike(f"^(?:{patterns})$")


def _needed(columns: Collection[str], *, decoded: bool) -> list[str]:
    """The columns to read that these are made of."""
    kept = DECODED | _TOLD if decoded else {}
    made = {"text", *DECODED} - {*kept}
    wanted = {*columns, *(("kind", "payload") if made & {*columns} else ())}
    if not wanted.isdisjoint(kept):
        wanted.add("numeric")
    return [name for name in (*TABLES["messages"].names, *kept) if name in wanted] or ["offset"]


def _check(names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no column {name!r}; there are {', '.join(known)}.")


def _default() -> "Config":
    from stafeta.config import load

    return load()
