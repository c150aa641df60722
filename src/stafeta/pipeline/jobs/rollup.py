"""The job rollup: readings in windows, to topics `rollup/<size>/<topic>` and to the table `rollups`.

1. A micro-batch is worked out once, and what comes of it is on the disk beside the checkpoint before anybody sees it.
   One that is repeated is not worked out again: the same windows go to the lake and to the topics, each of which takes
   them once.
2. What was written down of a batch is removed when the next is done with.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import Unsound
from stafeta.pipeline import checkpoint_files, spark_log
from stafeta.pipeline.job import Context, Job, with_valid_topic, without_own_topics
from stafeta.pipeline.jobs import windows
from stafeta.pipeline.lake import Lake
from stafeta.units import format_duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.config.options import Rollup as Options

NAME: Final = "rollup"
_FOLDER: Final = "windows"
_AHEAD: Final = "ahead"
_DONE: Final = "done.json"
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_LEAST, _MOST = 1.0, 30.0  # seconds between micro-batches without messages
_GROUPS: Final = "10000"  # of windows that a task sums up in memory; Spark sorts all readings otherwise


def start(context: Context) -> "Sequence[StreamingQuery]":
    place = f"{context.checkpoint}/{_FOLDER}"
    rollup = Rollup(
        lake=context.lake,
        broker=context.config.pipeline.broker,
        folder=place,
        name=f"{NAME}/{checkpoint_files.identity(place)}",
        sizes=tuple(round(size * 1e6) for size in context.config.rollup.sizes),
        delay=round(context.config.rollup.delay * 1e6),
        log=context.checkpoint,
    )
    readings = context.stream(columns="topic,offset,timestamp,number", **_idling(context.config.rollup))
    return [context.start(readings.writeStream.foreachBatch(rolling(rollup)))]


def _idling(options: "Options") -> dict[str, Any]:
    """While nothing comes, there are micro-batches without messages, until the last windows are closed by the clock."""
    every = min(max(min(options.sizes) / 10, _LEAST), _MOST)
    until = max(options.sizes) + options.delay + 2 * every
    return {"idleTrigger": f"{round(every * 1000)}ms", "idleTriggerFor": f"{round(until * 1000)}ms"}


def figures(context: Context) -> Mapping[str, Any]:
    """For the reports: how many windows are closed, how many readings came too late for those of each size, and how
    many had times that are ahead."""
    last = checkpoint_files.read(f"{context.checkpoint}/{_FOLDER}", _DONE)
    return {} if last is None else {name: last.get(name, 0) for name in ("late", _AHEAD, "windows")}


@dataclass(frozen=True)
class Rollup:
    """What a micro-batch needs to know. It can be sent to other processes."""

    lake: Lake
    broker: str
    folder: str
    name: str
    sizes: tuple[int, ...]
    delay: int
    log: str
    """Spark's checkpoint."""


def rolling(rollup: Rollup) -> "Callable[[DataFrame, int], None]":
    """What is done with each micro-batch."""

    def roll(batch: "DataFrame", number: int) -> None:
        done = checkpoint_files.read(f"{rollup.folder}/{number}", _DONE)
        if done is None:
            done = _compute_batch(rollup, batch, number)
        if done["closed"]:
            closed = _read_windows(batch.sparkSession, done, windows.CLOSED)
            _publish_windows(rollup, windows.finished(closed, _labels(done["sizes"])), number)
        checkpoint_files.remove(f"{rollup.folder}/{number - 1}")

    return roll


def _compute_batch(rollup: Rollup, batch: "DataFrame", number: int) -> dict[str, Any]:
    """Sums a batch up, with the windows that were open before; returns what was written down."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    spark = batch.sparkSession
    spark.conf.set("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", _GROUPS)
    before = _before(rollup, number)
    state = spark.createDataFrame([], windows.PARTS)
    if before["open"]:
        state = _read_windows(spark, before, windows.OPEN)
    now = round(time.time() * 1e6)
    parts = windows.parts(without_own_topics(batch), rollup.sizes, now + rollup.delay)
    idle = spark_log.looked_at(rollup.log, number)
    sizes = sorted(
        {*before["sizes"], *rollup.sizes}
    )  # windows of a size that is not wanted any more are still open
    seen, labels, late = Observation(), _labels(sizes).items(), sf.col(windows.WINDOW_STATE) == windows.LATE
    rows = windows.advanced(state, parts, delay=rollup.delay, now=now, idle=idle).observe(
        seen,
        sf.sum(sf.when(sf.col("size") == 0, sf.col("count"))).alias(_AHEAD),
        *(
            sf.count_if(sf.col(windows.WINDOW_STATE) == one).alias(one)
            for one in (windows.OPEN, windows.CLOSED)
        ),
        *(
            sf.sum(sf.when(late & (sf.col("size") == size), sf.col("count"))).alias(name)
            for size, name in labels
        ),
    )
    attempt = f"{rollup.folder}/{number}/{uuid.uuid4().hex}"
    rows.where(sf.col(windows.WINDOW_STATE) != windows.LATE).write.partitionBy(windows.WINDOW_STATE).parquet(
        attempt
    )
    checkpoint_files.keep(attempt)
    figures = seen.get
    done = {
        "folder": attempt,
        "sizes": sizes,
        "open": figures[windows.OPEN],
        "closed": figures[windows.CLOSED],
        "windows": before["windows"] + figures[windows.CLOSED],
        "late": {name: before["late"].get(name, 0) + (figures[name] or 0) for _, name in labels},
        _AHEAD: before.get(_AHEAD, 0) + (figures[_AHEAD] or 0),
    }
    checkpoint_files.write(f"{rollup.folder}/{number}", _DONE, done)
    checkpoint_files.write(rollup.folder, _DONE, done)
    return done


def _labels(sizes: Iterable[int]) -> dict[int, str]:
    return {size: format_duration(size / 1e6) for size in sizes}


def _read_windows(spark: "SparkSession", done: Mapping[str, Any], window_state: str) -> "DataFrame":
    """What was written down of a batch."""
    return spark.read.schema(windows.PARTS).parquet(f"{done['folder']}/{windows.WINDOW_STATE}={window_state}")


def _before(rollup: Rollup, number: int) -> dict[str, Any]:
    if number == 0:
        return {"sizes": [], "open": 0, "windows": 0, "late": {}}
    known = checkpoint_files.read(f"{rollup.folder}/{number - 1}", _DONE)
    if known is None:
        raise Unsound(
            f"The windows that were open after micro-batch {number - 1} are missing in {rollup.folder}: what is left "
            "of the checkpoint is of no use. Remove it, and the rollup begins anew with what comes."
        )
    return known


def _publish_windows(rollup: Rollup, closed: "DataFrame", number: int) -> None:
    """Windows to the lake, and to topics."""
    rollup.lake.append("rollups", closed, rollup.name, number)
    (
        published(closed)
        .write.format("stafeta")
        .mode("append")
        .option("broker", rollup.broker)
        .option("txnAppId", rollup.name)
        .option("txnVersion", number)
        .save()
    )


def published(closed: "DataFrame") -> "DataFrame":
    """Windows as messages. Of a topic whose name would be too long, there are none."""
    from pyspark.sql import functions as sf

    topic = sf.concat_ws("/", sf.lit(NAME), "size", "topic")
    values = [_finite(name) if kind == "double" else sf.col(name) for name, kind in closed.dtypes]
    payload = sf.to_json(sf.struct(*values), {"timestampFormat": _TIME, "ignoreNullFields": "false"})
    return with_valid_topic(
        closed.select(topic.alias("topic"), payload.alias("payload"), sf.lit("json").alias("kind"))
    )


def _finite(name: str) -> "Column":
    """A column of doubles; what is infinite or no number is null, since JSON has neither: Spark would write text."""
    from pyspark.sql import functions as sf

    return sf.when(sf.abs(name) < float("inf"), sf.col(name)).alias(name)


JOB = Job(
    NAME, "readings in windows of time, to topics rollup/<size>/<topic> and the lake", start, figures=figures
)
