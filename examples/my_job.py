"""Jobs of one's own: every function that `@job` marks is one.

    stafeta pipeline run ./examples/my_job.py

Each goes on where it was when it is run again, and writes each of its rows once. `stafeta pipeline status` tells how
they are, `stafeta pipeline stop` stops them.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from stafeta.pipeline import Context, job


@job(subscribe="upb/#", into="hot")
def hot(readings: DataFrame) -> DataFrame:
    """Readings above 30, as JSON objects."""
    # The stream comes decoded: topic, offset, timestamp, kind, number, text and others (docs/spark.md).
    return readings.where("number > 30").select("topic", "timestamp", "number")


@job(subscribe="upb/+/temperature")
def fahrenheit(readings: DataFrame) -> DataFrame:
    """Each temperature in degrees Fahrenheit, to a topic beside its own."""
    # These are columns of the sink: the rows are messages as they are, each to the topic that it names.
    return readings.where("number IS NOT NULL").selectExpr(
        "concat('fahrenheit/', topic) AS topic",
        "format_string('%.2f', number * 9 / 5 + 32) AS payload",
        "'float' AS kind",
    )


@job
def counts(context: Context) -> Sequence[StreamingQuery]:
    """How many messages each micro-batch has: any query, started through the context."""

    def count(batch: DataFrame, number: int) -> None:
        # A name and a number make a write repeatable: a micro-batch that is done again leaves nothing twice.
        rows = batch.groupBy().count().selectExpr("cast(count AS string) AS payload", "'int' AS kind")
        writer = (
            rows.write.format("stafeta").mode("append").option("broker", broker).option("topic", "counts")
        )
        writer.option("txnAppId", "counts").option("txnVersion", number).save()

    broker = context.config.pipeline.broker  # a plain value: through Spark Connect the function travels
    return [context.start(context.stream("upb/#").writeStream.foreachBatch(count))]
