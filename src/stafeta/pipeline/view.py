"""One table over lake and log.

1. The lake up to the offset that is archived, the log after it: no gap and no overlap, also while the archive goes on
   and the broker collects. What is archived stays in the log for a grace period (`pipeline.grace`); a query that takes
   longer and misses something fails, and says so.
2. A DataFrame is a snapshot: of the lake as of when it is made, of the log as of when it is first used.
"""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from stafeta.errors import ConfigError
from stafeta.names import filters_of, pattern_of
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.lake import archived_in
from stafeta.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from stafeta.clients.flight.listing import TopicInfo
    from stafeta.config import Config

COLUMNS: Final = (*TABLES["messages"].names, "text")
READINGS: Final = ("topic", "offset", "timestamp", "producer", "source", "kind", "number", "decimal")
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
    topics = _topics(config, filters) if log else []
    lake = Lake(config.lake)
    ends: dict[str, int] = {}
    frames = []
    if lake.has("messages"):
        table = lake.table("messages")
        ends = {topic: runs[-1][1] for topic, runs in archived_in(table).items()}
        past = lake.frame_of(spark, table, "messages")
        frames.append(past if subscribe in ("#", "*") else past.where(matching(filters)))
    if log:
        starts = {one.topic: _start(one, ends.get(one.topic, one.first)) for one in topics}
        frames.append(_live(spark, config, subscribe, names, starts))
    if not frames:
        return spark.createDataFrame([], TABLES["messages"].columns)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _topics(config: "Config", filters: Iterable[str]) -> "list[TopicInfo]":
    from stafeta import connect

    with connect(config.pipeline.broker) as broker:
        found = {topic.topic: topic for one in filters for topic in broker.topics(one)}
    return list(found.values())


def _live(
    spark: "SparkSession", config: "Config", subscribe: str, names: Sequence[str], starts: dict[str, int]
) -> "DataFrame":
    """What is in the log from these offsets on. They are all named: what is gone when it is read is missed, not passed
    over."""
    options = {
        "broker": config.pipeline.broker,
        "subscribe": subscribe,
        "columns": ",".join(names),
        "startingOffsets": json.dumps(starts) if starts else "earliest",
    }
    frame = spark.read.format("stafeta").options(**options).load()
    types = TABLES["messages"].types
    return frame.select(
        *(
            sf.col(name) if name in names else sf.lit(None).cast(type_).alias(name)
            for name, type_ in types.items()
        )
    )


def _start(topic: "TopicInfo", end: int) -> int:
    """Where the log is read from: after what is archived. The lake, which was looked at later, may be ahead of what the
    broker has told."""
    if topic.first > end:
        logger.warning("The messages %d to %d of topic %s are gone.", end, topic.first - 1, topic.topic)
    return max(topic.first, end)


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
