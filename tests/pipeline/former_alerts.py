"""Alerts as they were when Spark kept their state: for checkpoints of that time."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson
from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from stafeta.pipeline.job import Context
from stafeta.pipeline.jobs.alerting.alert_messages import payload_of, topic_of
from stafeta.pipeline.jobs.alerting.evaluation import (
    Evaluation,
    Readings,
    State,
    due,
    dump,
    evaluate,
    expire,
    load,
)
from stafeta.pipeline.jobs.alerting.rules import Rule
from tests.pipeline.queries import setting

STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
IDLE: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start(context: Context, rules: Sequence[Rule]) -> StreamingQuery:
    """The query, which reads what is there and ends."""
    from pyspark.sql import functions as f

    rows = context.stream(decode=True, columns="topic,offset,timestamp,number").where("number IS NOT NULL")
    events = rows.groupBy("topic").transformWithState(
        FormerProcessor(rules), "topic string, payload string", "Append", "processingTime"
    )
    writer = events.select("topic", "payload", f.lit("json").alias("kind")).writeStream.format("stafeta")
    # With timers Spark would make micro-batches for ever.
    with setting(context.spark, STATE_STORE, ROCKS), setting(context.spark, IDLE, "false"):
        return context.start(writer.outputMode("append").option("broker", context.config.pipeline.broker))


class FormerProcessor(StatefulProcessor):
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("topic", StructType([StructField("state", BinaryType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        stored = self._state.get()
        state = State() if stored is None else load(bytes(stored[0]))
        now = timerValues.getCurrentProcessingTimeInMs()
        return self._done(key[0], evaluate(self._rules, state, read(rows), now))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        stored = self._state.get()
        assert stored is not None
        state = load(bytes(stored[0]))
        return self._done(key[0], expire(self._rules, state, timerValues.getCurrentProcessingTimeInMs()))

    def close(self) -> None:
        pass

    def _done(self, topic: str, found: Evaluation) -> Iterator[Row]:
        deadline = due(self._rules, found.state) or 0
        if deadline:
            self._handle.registerTimer(deadline)
        _, offset, time, standings = orjson.loads(dump(found.state))
        self._state.update((orjson.dumps((1, offset, time, deadline, standings)),))
        for event in found.events:
            yield Row(topic=topic_of(event.rule.name, topic), payload=payload_of(event, topic))


def read(rows: Iterator[Any]) -> Readings:
    found = sorted((row.offset, round(row.timestamp.timestamp() * 1e6), row.number) for row in rows)
    offsets, times, numbers = zip(*found, strict=True)
    return Readings(np.array(offsets), np.array(times), np.array(numbers))
