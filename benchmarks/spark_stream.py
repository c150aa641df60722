"""A backlog of 10,000,000 messages read by a streaming query with AvailableNow: in one micro-batch, and in ten."""

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.brokers import Broker
from benchmarks.results import Bar, Column, Row, Table, Value
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_rounds import chosen, take_turns
from benchmarks.spark_session import about, session
from benchmarks.spark_topic import backlog, expect, run_through, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENOUGH = Bar("rate", "≥", 1_000_000, "/s")


class Measure(NamedTuple):
    batches: int
    rate: float  # rows a second, from the query's start to its end
    triggers: float  # the same by the time of the micro-batches, as their progress says
    added: float  # and by the part of it in which rows were read and written


def run(setting: Setting) -> list[Table]:
    total, portion = setting.sized((10_000_000, 1_000_000), (5_000, 2_000))
    spark = session(setting)
    columns = {"all columns": {}, "payload only": {"columns": "payload"}}
    if setting.quick:
        del columns["all columns"]
    portions = {"one": {}, f"of {portion:,}": {"maxOffsetsPerTrigger": str(portion)}}
    options: dict[tuple[str, str], dict[str, str]] = {
        (what, batches): {**columns[what], **portions[batches]} for what in columns for batches in portions
    }
    with backlog(setting, total) as broker:
        measures = take_turns(
            setting,
            {", ".join(key): partial(_read, setting, spark, broker, total, options[key]) for key in options},
        )
    rows = []
    for key in options:
        rounds = sorted(measures[", ".join(key)], key=lambda each: each.rate)
        middle = rounds[(len(rounds) - 1) // 2]
        values: dict[str, Value] = {"what": key[0], "portion": key[1], **middle._asdict()}
        rows.append(Row(values, (ENOUGH,)))
    return [
        Table(
            f"Streaming read of {total:,} messages of {PAYLOAD} bytes with AvailableNow",
            "Rows a second into the sink noop: from the start of the query to its end, by the time of all triggers, "
            "and by the part of them in which rows are read (triggerExecution and addBatch of the query's progress). "
            f"{chosen(setting)}. {about(spark)}",
            (
                Column("what", "what"),
                Column("portion", "micro-batches"),
                Column("batches", "number"),
                Column("rate", "rows/s"),
                Column("triggers", "by triggers"),
                Column("added", "by addBatch"),
            ),
            tuple(rows),
            labels=2,
        )
    ]


def _read(
    setting: Setting, spark: "SparkSession", broker: Broker, total: int, options: dict[str, str]
) -> Measure:
    start = perf_counter()
    writer = stream(spark, broker, **options).writeStream.format("noop")
    query = run_through(writer, setting.folder)
    took = perf_counter() - start
    progress = [each for each in query.recentProgress if each.numInputRows]
    expect(total, sum(each.numInputRows for each in progress), "the query's progress")
    triggers, added = (
        sum(each.durationMs[name] for each in progress) / 1000 for name in ("triggerExecution", "addBatch")
    )
    return Measure(len(progress), total / took, total / triggers, total / added)
