"""A user's job for a cluster: `stafeta pipeline run … cluster_job.py --once`, as test_cluster does.

When the other jobs have ended, it reads the topics `readings/+`, copies them in batch to `copied/batch` and in a stream
to `copied/stream`, where one task comes to a stop and is speculated; and writes to `told.json` what it has read, and on
which executors Spark says that the tasks of each job and each of the three ran, and whether as speculative copies.
"""

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import stafeta
from stafeta.pipeline import Context, job
from stafeta.pipeline.runner.reports import last_reports
from tests.pipeline.rooms import JOBS
from tests.waiting import wait_until

PARTITIONS = 6
_PATIENCE = 600.0


@job(batch=True)
def copies(context: Context) -> None:
    """Copies readings in two ways, once it has both executors to itself."""
    spark, broker = context.spark, context.config.pipeline.broker
    wait_until(lambda: ended(broker), _PATIENCE)
    options = {"broker": broker, "subscribe": "readings/+", "minPartitions": str(PARTITIONS)}
    readings = spark.read.format("stafeta").options(**options).load()
    spark.sparkContext.setJobDescription("read")
    found = read(readings)
    spark.sparkContext.setJobDescription("batch")
    copy_in_batch(readings, broker)
    copy_in_stream(spark, options, context.checkpoint)
    Path("told.json").write_text(json.dumps({"read": found, "tasks": list(tasks(spark))}))


def ended(broker: str) -> bool:
    """Whether all the other jobs have."""
    with stafeta.connect(broker) as client:
        heard = last_reports(client)
    return all(name in heard and heard[name].report.ended for name in JOBS)


def read(readings: DataFrame) -> dict[str, list[int]]:
    """Of each topic: the number of rows, of offsets and of payloads, the first offset and the last."""
    found: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for topic, offset, payload in readings.select("topic", "offset", "payload").collect():
        found[topic].append((offset, bytes(payload)))
    told = {}
    for topic, rows in found.items():
        offsets = {offset for offset, _ in rows}
        payloads = {payload for _, payload in rows}
        told[topic] = [len(rows), len(offsets), len(payloads), min(offsets), max(offsets)]
    return told


def copy_in_batch(readings: DataFrame, broker: str) -> None:
    (
        readings.select("payload", "kind")
        .write.format("stafeta")
        .mode("append")
        .option("broker", broker)
        .option("topic", "copied/batch")
        .save()
    )


def stopping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; but the first attempt of the first task comes to a stop before its last."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if (context.partitionId(), context.attemptNumber()) == (0, 0):
            time.sleep(600)  # the stop, which Spark ends
        yield batch.slice(batch.num_rows // 2)


def copy_in_stream(spark: SparkSession, options: dict[str, str], checkpoint: str) -> None:
    query = (
        spark.readStream.format("stafeta")
        .options(**options)
        .option("startingOffsets", "earliest")
        .load()
        .select("payload", "kind")
        .mapInArrow(stopping, "payload binary, kind string")
        .writeStream.format("stafeta")
        .option("broker", options["broker"])
        .option("topic", "copied/stream")
        .option("checkpointLocation", checkpoint)
        .queryName("stream")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def tasks(spark: SparkSession) -> Iterator[tuple[str, str, bool]]:
    """Of each task that did its work: the first line of its job's description, its executor, if it is speculative."""
    for stage in wait_until(lambda: stages(spark), _PATIENCE):
        for task in stage["tasks"].values():
            if task["status"] == "SUCCESS":
                yield work(stage), task["executorId"], task["speculative"]


def stages(spark: SparkSession) -> list[dict[str, Any]]:
    """Those that Spark has a record of, once it has recorded the end of them all; until then none."""
    context = spark.sparkContext
    found = _get(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages?details=true")
    over = all(stage["status"] not in ("ACTIVE", "PENDING") for stage in found)
    return found if over and "stream" in map(work, found) else []


def work(stage: dict[str, Any]) -> str:
    text: str = stage.get("description", "")
    return text.partition("\n")[0]


def _get(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found
