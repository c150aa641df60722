"""Readings in windows of event time, a batch after the other.

1. What is known of a window can be merged: readings are summed up where they are, and parts of a window from several
   batches become one. All sizes come from one pass over the readings, in slots that every size is made of.
2. Each topic has its own clock, the newest time that it has had: one whose backlog is still being read is not late
   because another is ahead. A topic of which nothing waits goes by the time of the day, as far as it takes to close
   what is over: whoever comes back with what it had stored meanwhile is not late.
3. A time that is ahead of the time of the day by more than `delay` says nothing about it: a topic that tells no other
   goes by the time of the day, too. The reading is in its window all the same.
4. A window closes when its topic's clock has passed its end by `delay`. What comes for it later is late: it is counted,
   and changes nothing.

State and batches are DataFrames of one shape (`PARTS`). A row with size 0 is a topic's clock: its start, which is null
where nothing is known of it; its count is that of the readings which are ahead.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EDGE: Final = "struct<timestamp:timestamp,offset:bigint,number:double>"
PARTS: Final = (
    "topic string, size bigint, start bigint, count bigint, mean double, m2 double, min double, max double, "
    f"first {_EDGE}, last {_EDGE}, sketch binary"
)
"""Sizes and times are in microseconds; m2 is the sum of the squares of the distances from the mean."""

WINDOW_STATE: Final = "fate"  # as it is called in checkpoints
OPEN, CLOSED, LATE = "open", "closed", "late"
_NAMES: Final = ("topic", "size", "start", "count", "mean", "m2", "min", "max", "first", "last", "sketch")
# Put together so, and not from sums of squares, the digits of large numbers that differ little are not lost.
_SUM: Final = """aggregate(
    sums,
    named_struct('count', 0L, 'mean', 0D, 'm2', 0D),
    (a, b) -> named_struct(
        'count', a.count + b.count,
        'mean', a.mean + (b.mean - a.mean) * b.count / (a.count + b.count),
        'm2', a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * a.count * b.count / (a.count + b.count)))"""


def parts(readings: "DataFrame", sizes: Sequence[int], latest: int) -> "DataFrame":
    """Windows of these sizes (microseconds) of readings, which are rows of topic, offset, timestamp and number, and the
    clocks of their topics. A row without a number counts for the clock alone, one after `latest` not for the clock."""
    slot = math.gcd(*sizes)
    micros = sf.unix_micros("timestamp")
    ahead = micros > latest
    edge = sf.when(sf.col("number").isNotNull(), sf.struct("timestamp", "offset", "number"))
    slots = readings.groupBy("topic", (micros - sf.pmod(micros, sf.lit(slot))).alias("slot")).agg(
        sf.count("number").alias("count"),
        sf.avg("number").alias("mean"),
        (sf.var_pop("number") * sf.count("number")).alias("m2"),
        sf.min("number").alias("min"),
        sf.max("number").alias("max"),
        sf.min(edge).alias("first"),
        sf.max(edge).alias("last"),
        sf.kll_sketch_agg_double("number").alias("sketch"),
        sf.max(sf.when(~ahead, micros)).alias("newest"),
        sf.count_if(ahead & sf.col("number").isNotNull()).alias("ahead"),
    )
    windows = slots.withColumn(
        "size", sf.explode(sf.array(*(sf.lit(one).cast("bigint") for one in (0, *sizes))))
    )
    windows = windows.where("size = 0 OR count > 0")
    windows = windows.withColumn("start", sf.expr("if(size = 0, newest, slot - pmod(slot, size))"))
    clock = sf.col("size") == 0
    return windows.select(
        "topic",
        "size",
        "start",
        sf.expr("if(size = 0, ahead, count)").alias("count"),
        *(sf.when(~clock, sf.col(name)).alias(name) for name in _NAMES[4:]),
    )


def advanced(
    state: "DataFrame", batch: "DataFrame", *, delay: int, now: int, idle: int | None = None
) -> "DataFrame":
    """What comes of a state and the parts of a batch, at the time `now`: windows, each once, and clocks, with the
    column `window_state`. Open rows are the next state; closed and late ones are done with. `idle` is a time at
    which nothing waited of the topics that are not in the batch."""
    rows = state.withColumn("old", sf.lit(True)).unionByName(batch.withColumn("old", sf.lit(False)))
    topic = Window.partitionBy("topic")
    old, clock, end = sf.col("old"), sf.col("size") == 0, sf.col("start") + sf.col("size")
    newest = sf.max(sf.when(clock & ~old, sf.col("start"))).over(topic)
    before = sf.max(sf.when(clock & old, sf.col("start"))).over(topic)
    here = sf.max(~old).over(topic)
    by_day = sf.when(sf.col("here"), sf.lit(now)).otherwise(sf.lit(idle)).cast("bigint")
    over = sf.max(sf.when(~clock & (end + delay <= by_day), end + delay)).over(topic)
    clocked = rows.withColumns({"before": before, "newest": newest, "here": here}).withColumns(
        {
            "now": sf.greatest("before", sf.coalesce("newest", over)),
            "late": sf.coalesce(~old & ~clock & (end <= sf.col("before") - delay), sf.lit(False)),
            "window": sf.when(~clock, sf.col("start")),
        }
    )
    together = clocked.groupBy("topic", "size", "window", "late").agg(
        sf.max("now").alias("now"),
        sf.sum(sf.when(clock & ~old, sf.col("count"))).alias("ahead"),
        sf.collect_list(sf.when(~clock, sf.struct("count", "mean", "m2"))).alias("sums"),
        sf.min("min").alias("min"),
        sf.max("max").alias("max"),
        sf.min("first").alias("first"),
        sf.max("last").alias("last"),
        sf.kll_merge_agg_double("sketch").alias("sketch"),
    )
    past = sf.col("window") + sf.col("size") <= sf.col("now") - delay
    window_state = sf.when(sf.col("late"), LATE).when(past, CLOSED).otherwise(OPEN)
    return (
        together.withColumn("sum", sf.expr(_SUM))
        .withColumns({"start": sf.coalesce("window", "now"), WINDOW_STATE: window_state})
        .withColumns({name: sf.col(f"sum.{name}") for name in ("count", "mean", "m2")})
        .withColumn("count", sf.when(clock, sf.coalesce("ahead", sf.lit(0))).otherwise(sf.col("count")))
        .select(*_NAMES, WINDOW_STATE)
    )


def finished(rows: "DataFrame", labels: dict[int, str]) -> "DataFrame":
    """Windows in the columns of the table `rollups`."""
    size = sf.create_map(*(sf.lit(one) for pair in labels.items() for one in pair))[sf.col("size")]
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return rows.select(
        "topic",
        size.alias("size"),
        sf.timestamp_micros("start").alias("start"),
        sf.timestamp_micros(sf.col("start") + rows["size"]).alias("end"),
        "count",
        "min",
        "max",
        "mean",
        sf.when(sf.col("count") > 1, sf.sqrt(sf.col("m2") / (sf.col("count") - 1))).alias("stddev"),
        *(
            sf.kll_sketch_get_quantile_double("sketch", sf.lit(rank)).alias(name)
            for name, rank in ranks.items()
        ),
        sf.col("first.number").alias("first"),
        sf.col("last.number").alias("last"),
    )
