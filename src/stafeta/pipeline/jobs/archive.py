"""The job archive: every topic into the table `messages`, exactly once.

1. The lake says how far it has come: a query without a checkpoint goes on there, and what is read again is not added
   again.
2. The broker holds what is not in the lake. What has been there for the grace period, so that no query still reads it
   from the log, is acknowledged; then the broker may collect it.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from stafeta.errors import DataLoss
from stafeta.names import filters_of
from stafeta.pipeline import checkpoint
from stafeta.pipeline.job import Context, Job, hold
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.files import joined
from stafeta.pipeline.lake.filing import Filing
from stafeta.pipeline.lake.lake import archived_in
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.lake.unused import sweep_now_and_then

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.doors.flight.client.connection import Connection

NAME: Final = "archive"
HOLDER: Final = "pipeline/archive"  # under which the broker holds what is not in the lake
_SEEN: Final = "seen.json"
_GLANCE: Final = 1.0  # seconds between looks whether something can be acknowledged

log = logging.getLogger(__name__)


def start(context: Context) -> "Sequence[StreamingQuery]":
    from stafeta import connect

    lake, pipeline = context.lake, context.config.pipeline
    filters = filters_of(pipeline.subscribe)
    hold(pipeline.broker, HOLDER, pipeline.subscribe)
    with connect(pipeline.broker) as broker:
        topics = {topic.topic: topic for one in filters for topic in broker.topics(one)}
    ends = {topic: runs[-1][1] for topic, runs in lake.archived().items() if topic in topics}
    for topic, end in ends.items():
        if topics[topic].next < end:
            raise DataLoss(
                f"Topic {topic} ends with message {topics[topic].next - 1}, but {end - 1} is in the lake: the broker's "
                "data is not what was archived there. Archive it into another lake, or another lake.namespace."
            )
    context.spark.dataSource.register(Filing)
    files = context.stream(
        source=Filing.name(),
        table=lake.table("messages").location(),
        every=context.config.archive.every,
        size=context.config.archive.size,
        durable=None,
        startingOffsets=json.dumps(ends) if ends else "earliest",
    )
    query = context.start(files.writeStream.foreachBatch(archiving(lake, context.config.compact.keep)))
    keeper = Keeper(lake, pipeline.broker, filters, pipeline.grace, f"{context.checkpoint}/keeper")
    threading.Thread(target=keeper.run, args=(query,), name="stafeta-archive", daemon=True).start()
    return [query]


def archiving(lake: Lake, keep: float) -> "Callable[[DataFrame, int], None]":
    """What is done with each micro-batch."""

    def archive(batch: "DataFrame", number: int) -> None:
        told = batch.collect()
        ranges = joined((row.topic, row.start, row.stop) for row in told)
        lake.archive_files(batch.sparkSession, sorted({row.url for row in told}), ranges, NAME, number)
        for name in TABLES:
            if lake.has(name):
                sweep_now_and_then(lake.table(name), keep)

    return archive


def _active(query: "StreamingQuery") -> bool:
    """Whether a query goes on, told a little later."""
    time.sleep(_GLANCE)
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - of a session that is gone, in whichever way
        return False


class Keeper:
    """Tells the broker what has been in the lake for long enough. What it has seen there is in a folder, so that many
    short runs do it as well as a long one."""

    def __init__(self, lake: Lake, broker: str, filters: Sequence[str], grace: float, folder: str) -> None:
        self._lake = lake
        self._address = broker
        self._filters = filters
        self._grace = grace
        self._folder = folder
        known = checkpoint.read(folder, _SEEN) or {"seen": []}
        self._seen: deque[tuple[float, dict[str, int]]] = deque((time, ends) for time, ends in known["seen"])
        self._metadata = ""

    def run(self, query: "StreamingQuery") -> None:
        """Does so for as long as a query runs, and once more then."""
        from stafeta import connect

        broker: Connection | None = None
        active = True
        while active:
            active = _active(query)
            try:
                self.look(time.time())
                broker = broker or connect(self._address)
                self.acknowledge(broker, time.time())
            except Exception as error:  # noqa: BLE001 - broker or lake are away, which the query finds out as well
                log.debug("Nothing is acknowledged: %s", error)
        if broker is not None:
            broker.close(0.0)

    def look(self, now: float) -> None:
        """Remembers what is in the lake now, some ten times in a grace period."""
        if self._seen and now < self._seen[-1][0] + self._grace / 10:
            return
        table = self._lake.table("messages")
        if table.metadata_location == self._metadata:
            return
        ends = {topic: runs[-1][1] for topic, runs in archived_in(table).items()}
        if ends and not (self._seen and self._seen[-1][1] == ends):
            self._seen.append((now, ends))
            self._write_down()
        self._metadata = table.metadata_location

    def acknowledge(self, broker: "Connection", now: float) -> None:
        """Acknowledges what was there when the grace period began."""
        old = [ends for since, ends in self._seen if since <= now - self._grace]
        if not old:
            return
        for one in self._filters:
            floors = broker.cursors(one, name=HOLDER)
            done = {topic: old[-1][topic] for topic, floor in floors.items() if old[-1].get(topic, 0) > floor}
            if done:
                broker.acknowledge(one, done, name=HOLDER)
        for _ in old:
            self._seen.popleft()
        self._write_down()

    def _write_down(self) -> None:
        checkpoint.write(self._folder, _SEEN, {"seen": list(self._seen)})


JOB = Job(NAME, "every topic into the lake's table messages, exactly once", start)
