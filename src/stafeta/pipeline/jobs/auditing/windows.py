"""Whether each window that was published is in the table `rollups`, once, and the same; and each that is there was
published.

1. A window goes to the lake first, and then to its topic: what is in the topic is in the lake that is looked up later.
2. A message counts if a rollup has published it that writes to this table; others may publish what they like.
3. What a rollup published before it wrote to this table is not missed: it wrote to another lake then.
4. A window of the table that is looked up first is in its topic soon after. Where lake and log do not have a topic from
   its first message on, nobody knows what was in it.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from stafeta.names import FLIGHT_PREFIX
from stafeta.pipeline.connector.sink import PRODUCER
from stafeta.pipeline.jobs.auditing.findings import Finding, Tally
from stafeta.pipeline.lake.lake import WRITER
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.local_frame import local_frame
from stafeta.times import iso, time_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame

CHECK: Final = "windows"
TWICE: Final = "more than once in the table rollups"
UNKNOWN: Final = "published, not in the table rollups"
UNLIKE: Final = "not the same in the table rollups"
UNPUBLISHED: Final = "in the table rollups, not published"
TOPICS: Final = "rollup/"
"""How the topics begin that windows are published to."""
COLUMNS: Final = ("topic", "offset", "timestamp", "producer", "payload")
MOST: Final = 10_000  # of each kind that are reported
_KEY: Final = ("topic", "size", "start")
_TYPES: Final = TABLES["rollups"].types
_FIGURES: Final = [name for name in _TYPES if name not in _KEY]


def producers(table: "Table") -> list[str]:
    """Who has published what is in the table."""
    writers = (name.removeprefix(WRITER) for name in table.properties if name.startswith(WRITER))
    return [f"{FLIGHT_PREFIX}{PRODUCER}{writer}" for writer in writers]


def repeated(rows: "DataFrame") -> list[Finding]:
    """The windows that are there more than once, by topic and size."""
    found = (
        rows.groupBy(*_KEY)
        .count()
        .where("count > 1")
        .groupBy("topic", "size")
        .agg(sf.count("*").alias("windows"), sf.expr("min(unix_micros(start))").alias("first"))
        .orderBy("topic", "size")
        .limit(MOST)
    )
    return [
        Finding(CHECK, topic, f"{TWICE}: those of {size}, from {iso(time_of(first))} on", (), windows)
        for topic, size, windows, first in found.collect()
    ]


def compare(tally: Tally, messages: "DataFrame", rows: "DataFrame", published_by: Collection[str]) -> None:
    """Adds what is wrong with windows in topics, given as messages with `COLUMNS`, by the rows of the table."""
    windows = _published(messages, published_by)
    stored = rows.select(
        *_KEY, *(_plain(sf.col(name), _TYPES[name]).alias(f"lake_{name}") for name in _FIGURES)
    )
    alike = " AND ".join(f"`{name}` <=> `lake_{name}`" for name in _FIGURES)
    of_message = ("place", "offset", "producer", "published")
    compared = (
        windows.join(stored, [*_KEY], "left")
        .groupBy(*of_message)
        .agg(
            sf.expr("bool_or(lake_count IS NOT NULL)").alias("there"),
            sf.expr(f"bool_or({alike})").alias("alike"),
        )
    )
    by_producer = (
        compared.groupBy("producer")
        .agg(
            sf.expr("coalesce(min(IF(there, published, null)), max(published))").alias("since"),
            sf.expr("count_if(NOT (there AND alike))").alias("doubtful"),
        )
        .where("doubtful > 0")
    )
    since: Any = [(one["producer"], one["since"]) for one in by_producer.collect()]
    if not since:
        return
    begun = sf.broadcast(local_frame(rows.sparkSession, since, "producer string, since bigint"))
    found = (
        compared.join(begun, "producer")
        .where("IF(there, NOT alike, published >= since)")
        .orderBy("place", "offset")
        .limit(MOST)
        .select("place", "offset", "there")
    )
    for place, offset, there in found.collect():
        tally.add(CHECK, place, UNLIKE if there else UNKNOWN, [(offset, offset + 1)])


def unpublished(
    rows: "DataFrame", messages: "DataFrame", published_by: Collection[str], places: Collection[str]
) -> list[Finding]:
    """The windows that are not among messages with `COLUMNS`, of those that belong in these topics."""
    names = [(place,) for place in places]
    known = sf.broadcast(local_frame(rows.sparkSession, names, "place string"))
    found = (
        rows.select(*_KEY, sf.concat(sf.lit(TOPICS), "size", sf.lit("/"), "topic").alias("place"))
        .join(known, "place")
        .join(_published(messages, published_by).select(*_KEY), [*_KEY], "left_anti")
        .groupBy("place")
        .agg(sf.count("*").alias("windows"), sf.expr("min(unix_micros(start))").alias("first"))
        .orderBy("place")
        .limit(MOST)
    )
    return [
        Finding(CHECK, place, f"{UNPUBLISHED}: from {iso(time_of(first))} on", (), windows)
        for place, windows, first in found.collect()
    ]


def _published(messages: "DataFrame", published_by: Collection[str]) -> "DataFrame":
    """The windows in messages with `COLUMNS`."""
    read = ", ".join(
        f"{name} {'string' if type_ == 'timestamp' else type_}" for name, type_ in _TYPES.items()
    )
    return (
        messages.where(sf.col("topic").startswith(TOPICS) & sf.col("producer").isin(*published_by))
        .withColumn("window", sf.from_json(sf.col("payload").cast("string"), read))
        .select(
            sf.col("topic").alias("place"),
            "offset",
            "producer",
            sf.unix_micros("timestamp").alias("published"),
            *(
                _plain(sf.col(f"window.{name}").try_cast(type_), type_).alias(name)
                for name, type_ in _TYPES.items()
            ),
        )
    )


def _plain(column: "Column", type_: str) -> "Column":
    """A figure as a message has it: null, where it is infinite or no number. Earlier versions wrote those as text."""
    if type_ != "double":
        return column
    return sf.when(~sf.isnan(column) & (sf.abs(column) < float("inf")), column)
