"""The job alerts: rules over readings, raised and cleared once each, to `alerts/<rule>/<topic>`. (docs/alerts.md)

1. Its tasks pack the readings that rules are about (`alerting.alert_source`). They are judged here, by what is known of
   each topic: that is the state (`batches.stateful`), and the alerts go to their topics, which take them once.
2. The time of a micro-batch is in Spark's checkpoint: one that is computed again comes out the same.
3. Without a rule that waits for silence nothing has to be done while nothing comes, and so nothing is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stafeta.pipeline import spark_log
from stafeta.pipeline.connector.sink import write_once
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.jobs.alerting import alert_state, former_state
from stafeta.pipeline.jobs.alerting.alert_source import DUE, NOW, AlertSource, AlertStream, options_of
from stafeta.pipeline.jobs.alerting.alert_state import Messages, States, advanced, next_due
from stafeta.pipeline.jobs.alerting.packs import unpacked
from stafeta.pipeline.jobs.alerting.rules import Rule, load
from stafeta.pipeline.jobs.batches.reading_source import direct
from stafeta.pipeline.jobs.batches.stateful import BEFORE, Computed, StatefulBatches, last_notes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "alerts"
_FOLDER: Final = "alerts"
_FIGURES: Final = ("alerts", "late", "ahead")


def start(context: Context) -> "Sequence[StreamingQuery]":
    rules = load(context.config.alerts.rules)
    folder = f"{context.checkpoint}/{_FOLDER}"
    stream = AlertSource(options_of(rules, folder)).stream(direct(context))
    alerting = Alerting(rules, context.config.pipeline.broker, folder, context.checkpoint, stream)
    former_state.take_over(context.spark, context.checkpoint, rules, alerting)
    context.spark.dataSource.register(AlertSource)
    options: dict[str, Any] = options_of(rules, folder)
    readings = context.stream(source=AlertSource.name(), **options)
    return [context.start(readings.writeStream.foreachBatch(alerting))]


def figures(context: Context) -> Mapping[str, Any]:
    """For the reports: how many alerts there were, how many readings came late, and how many had times that are
    ahead."""
    last = last_notes(f"{context.checkpoint}/{_FOLDER}")
    return last and {name: last[name] for name in _FIGURES}


class Alerting(StatefulBatches[States, Messages]):
    """The state is what is known of each topic, the results are alerts."""

    job = NAME
    counted = "new"

    def __init__(
        self, rules: Sequence[Rule], broker: str, folder: str, log: str, stream: AlertStream | None = None
    ) -> None:
        super().__init__(folder, log, stream)
        self._rules = rules
        self._broker = broker

    def compute(
        self, state: States, before: Mapping[str, Any], packed: Iterable[tuple[int, bytes]], number: int
    ) -> Computed[States, Messages]:
        readings = unpacked(parts for _, parts in packed)
        now = spark_log.begun_at(self._log, number)
        after = advanced(self._rules, state, readings, now, before.get(NOW, 0))
        found = {"alerts": len(after.messages), "late": after.late, "ahead": after.ahead}
        notes = {name: before.get(name, 0) + count for name, count in found.items()}
        notes |= {self.counted: len(after.messages), DUE: next_due(after.states), NOW: now}
        return Computed(after.states, after.messages, notes, bool(readings) or after.states != state)

    def hand_on(self, results: Messages, notes: Mapping[str, Any], number: int) -> None:
        topics, payloads = zip(*results, strict=True)
        rows = {"topic": topics, "payload": payloads, "kind": ["json"] * len(topics)}
        columns = {name: pa.array(column, pa.string()) for name, column in rows.items()}
        batch = pa.RecordBatch.from_pydict(columns)
        write_once(self._broker, spark_log.query_id(self._log), number, batch, notes.get(BEFORE))

    def empty(self) -> States:
        return {}

    def pack(self, state: States, results: Messages) -> bytes:
        return alert_state.pack(state, results)

    def unpack(self, content: bytes) -> tuple[States, Messages]:
        return alert_state.unpack(content)


JOB = Job(NAME, BUILT_IN[NAME].about, start, figures=figures)
