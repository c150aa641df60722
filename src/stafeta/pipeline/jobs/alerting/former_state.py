"""What earlier versions knew of topics: Spark kept it, in its own state store, below `state` in the checkpoint.

It is read once, as it was after the last micro-batch that is committed, and written as it is now; then it is removed,
since Spark does not start a query beside a state that is not the query's. A micro-batch that was planned is done again,
with the same messages and at the same time, and has the same name for the broker: nothing is lost or doubled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import Unsound
from stafeta.pipeline import checkpoint_files, spark_log
from stafeta.pipeline.jobs.alerting.alert_source import DUE
from stafeta.pipeline.jobs.alerting.alert_state import Known, Messages, States, known, next_due
from stafeta.pipeline.jobs.alerting.evaluation import load
from stafeta.pipeline.jobs.alerting.rules import Rule
from stafeta.pipeline.jobs.batches.stateful import StatefulBatches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE: Final = "state"
_VARIABLE: Final = "topic"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def take_over(
    spark: "SparkSession", checkpoint: str, rules: Sequence[Rule], batches: StatefulBatches[States, Messages]
) -> None:
    """Goes on with what an earlier version has left in a checkpoint, if it has."""
    if not checkpoint_files.exists(f"{checkpoint}/{STATE}"):
        return
    spark_log.recover(checkpoint)
    last = spark_log.last_commit(checkpoint)
    if last >= 0 and not batches.has(last):
        states = _read(spark, checkpoint, last, rules)
        notes = {"alerts": 0, "late": 0, "ahead": 0, batches.counted: 0, DUE: next_due(states)}
        batches.write(last, states, (), notes)
    checkpoint_files.remove(f"{checkpoint}/{STATE}")


def _read(spark: "SparkSession", checkpoint: str, last: int, rules: Sequence[Rule]) -> dict[str, Known]:
    options: dict[str, Any] = {"stateVarName": _VARIABLE, "batchId": last}
    before = spark.conf.get(_PROVIDER)
    try:
        spark.conf.set(_PROVIDER, _ROCKS)
        rows = spark.read.format("statestore").options(**options).load(checkpoint)
        found = rows.selectExpr("key.*", "value.*").collect()
    except Exception as error:
        raise Unsound(
            f"What an earlier version knew of the topics cannot be read in {checkpoint}/{STATE}: "
            f"{next(iter(str(error).splitlines()), '')} Run alerts once more with the version before, or remove the "
            "checkpoint: then alerts begin anew with what comes, and what is raised may be raised once more."
        ) from error
    finally:
        spark.conf.set(_PROVIDER, str(before))
    states = {row[0]: load(bytes(row[1])) for row in found}
    return {
        topic: known([rule for rule in rules if rule.matches(topic)], state)
        for topic, state in states.items()
    }
