"""A batch read by Spark by the number of tasks that share it and by the size of the Arrow batches."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.brokers import Broker
from benchmarks.percentiles import median
from benchmarks.results import Column, Row, Table
from benchmarks.setting import PAYLOAD, Setting
from benchmarks.spark_rounds import chosen, seconds, take_turns
from benchmarks.spark_session import about, session
from benchmarks.spark_topic import backlog, batch, scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = ((1, 2, 4, 16, 64), (1, 4))  # in earnest, and only to see that it works
BATCH_ROWS = ((1_000, 4_000, 16_000, 65_536), (1_000, 65_536))


def run(setting: Setting) -> list[Table]:
    total, tasks, sizes = setting.sized(3_000_000, 5_000), setting.sized(*TASKS), setting.sized(*BATCH_ROWS)
    spark = session(setting)
    ways: dict[tuple[int, int], Callable[[], float]] = {}
    with backlog(setting, total) as broker:
        planned = {number: _planned(spark, broker, number) for number in tasks}
        for number in tasks:
            for size in sizes:
                work = partial(_read, spark, broker, number, size, narrow=planned[number] > number)
                ways[number, size] = partial(seconds, work)
        measures = take_turns(setting, {_label(*point): work for point, work in ways.items()})
    rows = tuple(
        Row({"tasks": tasks, "size": size, "rate": total / median(measures[_label(tasks, size)])})
        for tasks, size in ways
    )
    fewest = min(planned.values())
    return [
        Table(
            f"Batch read of {total:,} messages of {PAYLOAD} bytes by tasks and rows in a batch",
            f"All columns, rows a second into the sink noop, from load() to the end. {chosen(setting)}. Tasks are "
            f"asked for by minPartitions. The source makes {fewest} of this topic by itself; fewer are those, one "
            f"after the other in each task, by coalesce(). {about(spark)}",
            (
                Column("tasks", "tasks"),
                Column("size", "batchRows"),
                Column("rate", "rows/s"),
            ),
            rows,
            labels=2,
        )
    ]


def _label(tasks: int, size: int) -> str:
    return f"tasks={tasks:,}, batchRows={size:,}"


def _planned(spark: "SparkSession", broker: Broker, tasks: int) -> int:
    """How many the source makes when at least so many are asked for."""
    return batch(spark, broker, minPartitions=str(tasks)).rdd.getNumPartitions()


def _read(spark: "SparkSession", broker: Broker, tasks: int, size: int, *, narrow: bool) -> None:
    rows = batch(spark, broker, minPartitions=str(tasks), batchRows=str(size))
    scan(rows.coalesce(tasks) if narrow else rows)
