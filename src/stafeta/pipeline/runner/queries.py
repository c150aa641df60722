"""What the runner asks of Spark: how a query is, and that what a thread does can be found and interrupted."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def begins(query: "StreamingQuery") -> bool:
    """Whether a query has not come to reading, or waiting for something to read."""
    return query.isActive and not str(query.status["message"]).startswith(("Processing", "Waiting"))


def is_done(query: "StreamingQuery") -> bool:
    """Whether a query has ended by itself, and well."""
    return not query.isActive and query.exception() is None


def batch_of(query: "StreamingQuery") -> int:
    """The last micro-batch that a query has reported."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def activate(spark: "SparkSession") -> None:
    """Spark finds Python sources by the active session, which a new thread does not have."""
    if is_local(spark):
        kind: Any = type(spark)
        kind._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def share_fairly(spark: "SparkSession") -> None:
    """What this thread starts shares Spark's tasks with what others ask, whoever came first."""
    if is_local(spark):
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "jobs")


def mark(spark: "SparkSession", tag: str) -> None:
    """What this thread does from now on can be interrupted by this name."""
    if is_local(spark):
        spark.sparkContext.setJobGroup(tag, tag, interruptOnCancel=True)
    else:
        spark.addTag(tag)


def interrupt(spark: "SparkSession", tag: str) -> None:
    """Ends what is being done under this name, by whichever thread. (A tag of a local session is its thread's own.)"""
    if is_local(spark):
        spark.sparkContext.cancelJobGroup(tag)
    else:
        spark.interruptTag(tag)


def has_ended(spark: "SparkSession") -> bool:
    """Whether a driver of ours is gone, killed or out of memory: nothing can be started there any more."""
    if not is_local(spark):
        return False
    try:
        context: Any = spark.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - of py4j, or of the system, in whichever way its JVM has ended
        return True


def is_local(spark: object) -> bool:
    """Whether the driver is ours, and not behind Spark Connect."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)
