"""The job archive: every topic into the table `messages`, exactly once.

1. The lake alone says how far it has come: a query begins with a new checkpoint, where the lake lacks something. What
   is read again is not added again.
2. The broker holds what is not in the lake (`stafeta.pipeline.jobs.archiving.retention`).
3. A log that is not the one that was archived ends the job (`stafeta.pipeline.jobs.archiving.same_log`): the lake has
   the broker's mark of it, which the broker is asked about when the job starts, and before each commit.
4. What is neither in the lake nor in the log ends the job, until it is accepted. Then the lake says so, and nobody asks
   again.
"""

import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import DataLoss
from stafeta.names import FLIGHT_PREFIX, filters_of, matcher
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.connector.file_source import FileSource
from stafeta.pipeline.job import Context, Job, hold, release
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.jobs.archiving.retention import FORMER, RetentionKeeper, holder
from stafeta.pipeline.jobs.archiving.same_log import check_same_log
from stafeta.pipeline.jobs.archiving.starts import Plan, plan, sentence
from stafeta.pipeline.lake import Lake, Source
from stafeta.pipeline.lake.files import joined
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.lake.unused import sweep_now_and_then
from stafeta.ranges import count, united

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "archive"
KEEPER: Final = "stafeta-archive"
"""The thread that lets the broker go of what is in the lake, and ends a little later than the query."""
_ACCEPTED: Final = "accepted"  # a figure of the job's reports: how many messages
_NOTES: Final = "keeper"  # the folder beside Spark's checkpoint


def start(context: Context) -> "Sequence[StreamingQuery]":
    lake, pipeline = context.lake, context.config.pipeline
    planned = _planned(context)
    # What is lost later, before a start after a failure, nobody has accepted.
    accepting = bool(context.arguments.get("accept_loss")) and _ACCEPTED not in context.figures
    if planned.lost and not accepting:
        raise DataLoss(sentence(planned.lost))
    if absent := united(planned.gone, planned.lost):
        lake.accept(absent)
    if accepting:
        context.note(**{_ACCEPTED: count(planned.lost)})
    context.spark.dataSource.register(FileSource)
    files = context.stream(
        source=FileSource.name(),
        table=lake.table("messages").location(),
        every=context.config.archive.every,
        size=context.config.archive.size,
        durable=None,
        startingOffsets=json.dumps(planned.starts) if planned.starts else "earliest",
    )
    place = checkpoint_files.fresh(context.checkpoint, keep=_NOTES)
    batches = archiving(lake, context.config.compact.keep, pipeline.broker)
    writer: Any = files.writeStream.foreachBatch(batches)
    query = context.start(writer, checkpoint=place)
    keeper = RetentionKeeper(
        lake,
        pipeline.broker,
        filters_of(pipeline.subscribe),
        pipeline.grace,
        f"{context.checkpoint}/{_NOTES}",
    )
    threading.Thread(target=keeper.run, args=(query,), name=KEEPER, daemon=True).start()
    return [query]


def _planned(context: Context) -> Plan:
    """Where to begin. The broker holds everything from now on that it has now."""
    from stafeta import connect

    lake, pipeline = context.lake, context.config.pipeline
    check_same_log(pipeline.broker, [lake.mark])
    had_none = lake.give_id()
    filters, name = filters_of(pipeline.subscribe), holder(lake)
    with connect(pipeline.broker) as broker:
        before = [one for one in broker.subscriptions() if one.client == FLIGHT_PREFIX + name]
    hold(pipeline.broker, name, pipeline.subscribe)
    if had_none:
        release(pipeline.broker, FORMER, ())
        lake.drop_former()
    with connect(pipeline.broker) as broker:
        topics = {topic.topic: topic for one in filters for topic in broker.topics(one)}
    known = lake.known()
    matches = [matcher(one) for one in filters]
    wanted = {topic for topic in known.done if any(one(topic) for one in matches)}
    return plan(topics, known.of(wanted), {cursor.topic for one in before for cursor in one.cursors})


def archiving(lake: Lake, keep: float, broker: str) -> "Callable[[DataFrame, int], None]":
    """What is done with each micro-batch."""

    def archive(batch: "DataFrame", number: int) -> None:
        rows = batch.collect()
        urls = sorted({row.url for row in rows})
        ranges = joined((row.topic, row.start, row.stop) for row in rows)
        source = Source({row.mark for row in rows}, partial(check_same_log, broker))
        lake.archive_files(batch.sparkSession, urls, ranges, NAME, number, source)
        for name in TABLES:
            if lake.has(name):
                sweep_now_and_then(lake.table(name), keep)

    return archive


# What a query misses, another archive of the same lake may have put there, and let the broker go of.
JOB = Job(NAME, BUILT_IN[NAME].about, start, replans=True)
