"""A streaming query, to be killed. Run as a program by the soak.

python -m tests.pipeline.soak_driver BROKER FOLDER STOP

copies what matches `SUBSCRIBE` to the topic `OUTPUT`, with its checkpoint in FOLDER, until the file STOP is there. Says
so when the query has started. A query that ends before STOP is there ends the program with its error.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.sessions import session

SUBSCRIBE = "input/+"
DURABLE = "soak"
OUTPUT = "output"


def settings() -> dict[str, str]:
    """What was planned, committed and lost is written down, and stays, for the soak to look at."""
    return {
        "spark.driver.memory": "512m",
        "spark.log.level": "WARN",
        "spark.sql.streaming.minBatchesToRetain": "1000000",
    }


def read(spark: SparkSession, broker: str) -> DataFrame:
    return (
        spark.readStream.format("stafeta")
        .option("broker", broker)
        .option("subscribe", SUBSCRIBE)
        .option("startingOffsets", "earliest")
        .option("durable", DURABLE)
        .option("minPartitions", 4)
        .option("columns", "payload,kind")
        .load()
    )


def write(rows: DataFrame, broker: str, checkpoint: Path) -> StreamingQuery:
    return (
        rows.writeStream.format("stafeta")
        .option("broker", broker)
        .option("topic", OUTPUT)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def main(broker: str, place: str, stop: str) -> None:
    folder = Path(place)
    with session("local[2, 8]", folder / "spark", settings()) as spark:
        query = write(read(spark, broker), broker, folder / "checkpoint")
        print("started", flush=True)
        while not Path(stop).exists():
            if query.awaitTermination(1):  # which raises the query's error, if that is what ended it
                raise SystemExit("the query has ended")
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
