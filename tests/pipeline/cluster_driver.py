"""A driver for a cluster. Run as a program by test_cluster.

cluster_driver.py MASTER BROKER FOLDER

reads the topics `readings/+` of a broker, copies them in batch to `copied/batch` and in a stream to `copied/stream`,
where one task comes to a stop and is speculated; and prints as JSON what it has read, and on which executors Spark says
that the tasks of each of the three ran, and whether as speculative copies.
"""

import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.sessions import JVM, session

PARTITIONS = 6


def settings(folder: Path) -> dict[str, str]:
    """Two executors, both there before the first task is given out, and Spark's own records at hand."""
    return {
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM.format(folder=folder),
        "spark.driver.memory": "512m",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }


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
            time.sleep(60)  # the stop, which Spark ends
        yield batch.slice(batch.num_rows // 2)


def copy_in_stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
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
        .option("checkpointLocation", str(folder / "checkpoint"))
        .queryName("stream")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def tasks(spark: SparkSession) -> Iterator[tuple[str, str, bool]]:
    """Of each task that did its work: the first line of its job's description, its executor, if it is speculative."""
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for stage in _get(f"{base}/stages?details=true"):
        for task in stage["tasks"].values():
            if task["status"] == "SUCCESS":
                yield stage.get("description", "").splitlines()[0], task["executorId"], task["speculative"]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def main(master: str, broker: str, place: str) -> None:
    folder = Path(place)
    options = {"broker": broker, "subscribe": "readings/+", "minPartitions": str(PARTITIONS)}
    with session(master, folder, settings(folder)) as spark:
        readings = spark.read.format("stafeta").options(**options).load()
        spark.sparkContext.setJobDescription("read")
        found = read(readings)
        spark.sparkContext.setJobDescription("batch")
        copy_in_batch(readings, broker)
        copy_in_stream(spark, options, folder)
        print(json.dumps({"read": found, "tasks": list(tasks(spark))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
