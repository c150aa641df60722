"""The state of all topics in Spark: a value for each, and a timer where a rule waits for silence.

1. For each topic and micro-batch the state is asked for once and changed once, whatever the number of readings.
2. A timer is not moved with each reading. It goes off, and is set again if the topic was not silent.
3. What is decided depends on the state and on the time of the micro-batch, which is in its checkpoint: a micro-batch
   that is done again comes out the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from stafeta.pipeline.jobs.alerting.alert_messages import payload_of, topic_of
from stafeta.pipeline.jobs.alerting.evaluation import (
    Evaluation,
    State,
    due,
    dump,
    evaluate,
    expire,
    joined,
    load,
)
from stafeta.pipeline.jobs.alerting.packs import unpacked
from stafeta.pipeline.jobs.alerting.rules import Rule

SCHEMA: Final = "topic string, payload string, late bigint, ahead bigint"
"""Alerts; and rows without a topic, which say how many readings came late, and how many had times that are ahead."""

_STATE: Final = StructType([StructField("state", BinaryType())])


class AlertProcessor(StatefulProcessor):
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("topic", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        topic = key[0]
        rules = [rule for rule in self._rules if rule.matches(topic)]
        stored = self._state.get()
        state = State() if stored is None else load(bytes(stored[0]))
        now = timerValues.getCurrentProcessingTimeInMs()
        judgement = evaluate(rules, state, joined(map(unpacked, rows)), now)
        return self._done(topic, rules, judgement)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        topic = key[0]
        rules = [rule for rule in self._rules if rule.matches(topic)]
        stored = self._state.get()
        if stored is None:
            return iter(())
        state = load(bytes(stored[0]))
        if state.timer == expiredTimerInfo.getExpiryTimeInMs():
            state = replace(state, timer=0)
        return self._done(topic, rules, expire(rules, state, timerValues.getCurrentProcessingTimeInMs()))

    def close(self) -> None:
        pass

    def _done(self, topic: str, rules: Sequence[Rule], judgement: Evaluation) -> Iterator[Row]:
        """Keeps the state, and tells what has come of it."""
        state = judgement.state
        deadline = due(rules, state)
        if deadline is not None and not 0 < state.timer <= deadline:
            self._handle.registerTimer(deadline)
            state = replace(state, timer=deadline)
        self._state.update((dump(state),))
        for event in judgement.events:
            yield Row(
                topic=topic_of(event.rule.name, topic), payload=payload_of(event, topic), late=0, ahead=0
            )
        if judgement.late or judgement.ahead:
            yield Row(topic=None, payload=None, late=judgement.late, ahead=judgement.ahead)
