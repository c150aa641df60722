"""The job alerts: rules over readings, raised and cleared once each, to `alerts/<rule>/<topic>`. (docs/alerts.md)

1. Only messages that a rule is about leave the JVM.
2. Without a rule that waits for silence nothing has to be done while nothing comes, and so nothing is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stafeta.pipeline.job import Context, Job, without_own_topics
from stafeta.pipeline.jobs.alerting.rules import Rule, load
from stafeta.pipeline.runner.progress_counter import OBSERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "alerts"
COLUMNS: Final = "topic,offset,timestamp,number"
_IDLE: Final = "spark.sql.streaming.noDataMicroBatches.enabled"


def alerts(messages: "DataFrame", rules: Sequence[Rule]) -> "DataFrame":
    """What becomes of a stream of messages (`COLUMNS`): messages for the sink. Among its observed metrics, under
    `alerts`, is how many readings came late, and how many had times that are ahead."""
    from pyspark.sql import functions as f

    from stafeta.pipeline.jobs.alerting import packs, processor

    packed = messages.where(concerned(rules)).mapInArrow(packs.packed, packs.SCHEMA)
    events = packed.groupBy("topic").transformWithState(
        processor.AlertProcessor(tuple(rules)), processor.SCHEMA, "Append", "processingTime"
    )
    observed = events.observe(NAME, *(f.coalesce(f.sum(one), f.lit(0)).alias(one) for one in OBSERVED))
    return observed.where("topic IS NOT NULL").select("topic", "payload", f.lit("json").alias("kind"))


def concerned(rules: Sequence[Rule]) -> "Column":
    """Whether a rule is about a message: silence is broken by any, the others are about numbers."""
    from pyspark.sql import functions as f

    from stafeta.pipeline.view import matching

    by_clock = [rule.topics for rule in rules if rule.kind == "silent_for"]
    by_value = [rule.topics for rule in rules if rule.kind != "silent_for"]
    about = f.lit(False)
    if by_clock:
        about = about | matching(by_clock)
    if by_value:
        about = about | (f.col("number").isNotNull() & matching(by_value))
    return about


def start(context: Context) -> "Sequence[StreamingQuery]":
    rules = load(context.config.alerts.rules)
    messages = without_own_topics(context.stream(decode=True, columns=COLUMNS))
    writer = alerts(messages, rules).writeStream.format("stafeta").outputMode("append")
    waits = any(rule.kind == "silent_for" for rule in rules) and not context.once
    with _idling(context.spark, waits):
        return [context.start(writer.option("broker", context.config.pipeline.broker))]


@contextmanager
def _idling(spark: "SparkSession", waits: bool) -> Iterator[None]:
    """Queries that are started meanwhile have micro-batches without messages, or none. (With timers Spark would make
    them for ever, also where it is to read only what is there.)"""
    before = spark.conf.get(_IDLE)
    spark.conf.set(_IDLE, str(waits).lower())
    try:
        yield
    finally:
        spark.conf.set(_IDLE, before or "true")


JOB = Job(NAME, "rules over readings: raised and cleared once each, to alerts/<rule>/<topic>", start)
