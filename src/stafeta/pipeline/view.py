"""One table over lake and log.

1. What the lake has is read from the lake, everything else from the log: no gap and no overlap, also while the archive
   goes on and the broker collects. What is archived stays in the log for a grace period (`pipeline.grace`); a query
   that takes longer and misses something fails, and says so.
2. A DataFrame is a snapshot: of the lake as of when it is made, of the log as of when it is first used.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from stafeta.errors import ConfigError
from stafeta.message import COLUMNS as OF_A_MESSAGE
from stafeta.names import filters_of, matcher, pattern_of
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.archived import NOTHING, Known, known_in
from stafeta.pipeline.lake.tables import TABLES
from stafeta.ranges import Ranges, first_missing, without

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from stafeta.clients.flight.connection import TopicInfo
    from stafeta.config import Config

COLUMNS: Final = (*TABLES["messages"].names, "text")
READINGS: Final = (*OF_A_MESSAGE[:-1], "number", "decimal")
NUMBERS: Final = ("int", "short_real", "float")
_FITTING: Final = r"^-?0*[0-9]{1,20}(\.[0-9]{1,18}0*)?$"  # what decimal(38, 18) holds

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
    frame = _stored(spark, config or _default(), subscribe, _needed(columns))
    return frame.select(*(text().alias(name) if name == "text" else sf.col(name) for name in columns))


def readings(
    spark: "SparkSession",
    config: "Config | None" = None,
    *,
    subscribe: str = "#",
    columns: Sequence[str] = READINGS,
) -> "DataFrame":
    """The messages that are numbers."""
    _check(columns, READINGS)
    return numbers(_stored(spark, config or _default(), subscribe, _needed([*columns, "kind"])), columns)


def register(
    spark: "SparkSession",
    config: "Config | None" = None,
    *,
    subscribe: str = "#",
    columns: Collection[str] = (*COLUMNS, *READINGS),
    log: bool = True,
) -> None:
    """Makes the temporary views `messages` and `readings` (and `rollups` and `dead`, if the lake has them) as of now.
    `columns` are those that are needed: others are null as far as they would come from the log. Without `log` the views
    are the lake alone."""
    config = config or _default()
    stored = _stored(spark, config, subscribe, _needed(columns), log=log)
    stored.withColumn("text", text()).createOrReplaceTempView("messages")
    numbers(stored).createOrReplaceTempView("readings")
    lake = Lake(config.lake)
    for name in ("rollups", "dead"):
        if lake.has(name):
            lake.frame(spark, name).createOrReplaceTempView(name)


def numbers(frame: "DataFrame", names: Sequence[str] = READINGS) -> "DataFrame":
    """Of messages those that are numbers, with the columns `number` and `decimal`."""
    made = {"number": number(), "decimal": decimal()}
    rows = frame.where(sf.col("kind").isin(*NUMBERS))
    return rows.select(*(made[name].alias(name) if name in made else sf.col(name) for name in names))


def text() -> "Column":
    return sf.when(sf.col("kind") != "bytes", sf.col("payload").cast("string"))


def number() -> "Column":
    return sf.expr("try_cast(cast(payload AS string) AS double)")


def decimal() -> "Column":
    digits = sf.col("payload").cast("string")
    return sf.when(digits.rlike(_FITTING), sf.expr("try_cast(cast(payload AS string) AS decimal(38, 18))"))


def _stored(
    spark: "SparkSession", config: "Config", subscribe: str, names: Sequence[str], *, log: bool = True
) -> "DataFrame":
    """The columns of the table `messages`, of lake and log. Of the log, those that are not named are null."""
    # The broker first: what it has collected by then is in the lake that is looked at afterwards.
    filters = filters_of(subscribe)
    topics = _topics(config, filters) if log else {}
    lake = Lake(config.lake)
    known = NOTHING
    frames = []
    if lake.has("messages"):
        table = lake.table("messages")
        known = known_in(table)
        past = lake.frame_of(spark, table, "messages")
        frames.append(past if subscribe in ("#", "*") else past.where(matching(filters)))
    if log:
        frames.append(_live(spark, config, subscribe, names, topics, known))
    if not frames:
        return spark.createDataFrame([], TABLES["messages"].columns)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _topics(config: "Config", filters: Iterable[str]) -> "dict[str, TopicInfo]":
    from stafeta import connect

    with connect(config.pipeline.broker) as broker:
        return {topic.topic: topic for one in filters for topic in broker.topics(one)}


def _live(
    spark: "SparkSession",
    config: "Config",
    subscribe: str,
    names: Sequence[str],
    topics: "Mapping[str, TopicInfo]",
    known: Known,
) -> "DataFrame":
    """What is in the log and not in the lake. All starts are named, those of the lake's topics too, which the log may
    have got since it was asked: what is gone when it is read is missed, not passed over."""
    starts = starts_of(filters_of(subscribe), topics, known)
    again = {  # what the lake has after a gap
        topic: later
        for topic, start in starts.items()
        if (later := [run for run in known.archived.get(topic, ()) if run[1] > start])
    }
    read = dict.fromkeys((*names, *(("topic", "offset") if again else ())))
    options = {
        "broker": config.pipeline.broker,
        "subscribe": subscribe,
        "columns": ",".join(read),
        "startingOffsets": json.dumps(starts) if starts else "earliest",
    }
    frame = spark.read.format("stafeta").options(**options).load()
    if again:
        frame = _except(frame, again)
    types = TABLES["messages"].types
    return frame.select(
        *(
            sf.col(name) if name in names else sf.lit(None).cast(type_).alias(name)
            for name, type_ in types.items()
        )
    )


def starts_of(filters: Iterable[str], topics: "Mapping[str, TopicInfo]", known: Known) -> dict[str, int]:
    """Where the log is read from: each topic's first offset that it may have and the lake lacks."""
    matches = [matcher(one) for one in filters]
    done = known.done
    starts = {}
    for name in sorted({*topics, *(topic for topic in done if any(one(topic) for one in matches))}):
        if name not in topics:
            starts[name] = first_missing(done[name])
            continue
        first, archived = topics[name].first, known.archived.get(name, [])
        starts[name] = first_missing(archived, first)
        if archived:
            for start, stop in without([(1, first)] if first > 1 else [], done[name]):
                logger.warning("The messages %d to %d of topic %s are gone.", start, stop - 1, name)
    return starts


def _except(frame: "DataFrame", ranges: Ranges) -> "DataFrame":
    """The messages without these offsets."""
    rows = [(topic, [*runs]) for topic, runs in ranges.items()]
    spark: Any = frame.sparkSession
    others = spark.createDataFrame(rows, "topic string, runs array<struct<start: bigint, stop: bigint>>")
    inside = "exists(runs, one -> offset >= one.start AND offset < one.stop)"
    joined = frame.join(sf.broadcast(others), "topic", "left")
    return joined.where(f"runs IS NULL OR NOT {inside}").drop("runs")


def matching(filters: Iterable[str]) -> "Column":
    """Whether a row's topic matches one of the filters."""
    patterns = "|".join(dict.fromkeys(map(pattern_of, filters)))
    return sf.concat(sf.lit("/"), sf.col("topic")).rlike(f"^(?:{patterns})$")


def _needed(names: Collection[str]) -> list[str]:
    """The stored columns that these are made of."""
    made = {"text", "number", "decimal"}
    wanted = {*names, *(("kind", "payload") if made & {*names} else ())}
    return [name for name in TABLES["messages"].names if name in wanted] or ["offset"]


def _check(names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no column {name!r}; there are {', '.join(known)}.")


def _default() -> "Config":
    from stafeta.config import load

    return load()
