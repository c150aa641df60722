"""Reading topics as a stream.

1. A stream's offsets are the next one of each topic. Those that end a micro-batch also say, under `NEW_TOPICS`, where
   the topics begin that are read for the first time. So what a micro-batch holds depends on the checkpoint alone: a
   replay reads the same, whatever has happened to the topics.
2. Spark asks for the latest offsets once the micro-batch before is committed: then what that held can be acknowledged.
   Spark also says so itself, but only when there is more to read.
3. Where a query goes by the clock (`idleTrigger`), its offsets also say, under `LOOKED`, when the topics were looked
   at, if those that are not in the micro-batch had nothing more then. While nothing comes, there are micro-batches
   without messages. A query that reads what is there ends with one.
4. What a checkpoint says is on the disk before it is relied on, if the stream knows where it is (`checkpointLocation`).
5. Where a topic ends before the place where the query stands, the broker's log is another one: the topic is new.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from stafeta.errors import DataLoss, NoSuchOffset, StafetaError
from stafeta.message import ROW
from stafeta.names import matcher
from stafeta.pipeline.connector.errors import each_plain, plain_errors
from stafeta.pipeline.connector.options import LOOKED, NEW_TOPICS, ReadOptions
from stafeta.pipeline.connector.planning import (
    LEAST,
    USUAL,
    Held,
    Range,
    Task,
    checked,
    held,
    present,
    slices,
    tasks,
)
from stafeta.pipeline.connector.spark_schema import arrow_schema, check_schema
from stafeta.pipeline.spark_log import Checkpoint
from stafeta.ranges import without

if TYPE_CHECKING:
    import pyarrow as pa

    from stafeta.clients.flight.connection import Connection, TopicInfo

_REST: Final = 0.05  # seconds
_GUESSES: Final = 20  # micro-batches that are planned by what messages weighed before, at most
Offsets: TypeAlias = dict[str, Any]
"""Next offsets by topic, and under `NEW_TOPICS` first ones."""


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver's for as long as the query runs, but for `read`, which tasks call."""

    mixes_topics: ClassVar[bool] = False
    """Whether tasks may read their topics in the order of the log, and not one after the other."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._checkpoint = Checkpoint(options.checkpoint)
        self._connection: Connection | None = None
        self._initial: Offsets | None = None
        self._target: dict[str, int] | None = None  # where Trigger.AvailableNow ends
        self._seen: dict[str, TopicInfo] | None = None  # the topics when they were last looked at
        self._held = False
        self._done: dict[str, int] = {}  # what was acknowledged
        self._waiting_since: float | None = None  # for `minOffsetsPerTrigger`
        self._silent_since = self._last_batch = time.monotonic()  # for `idleTrigger`
        self._target_time = 0  # when Trigger.AvailableNow has looked; microseconds since 1970
        self._is_closed = False  # its last micro-batch has been
        self._weight = float(ROW + USUAL)  # about how many bytes a message takes, as of the last micro-batch
        self._guesses = -1
        self._turn = 0  # which topics are served first, where there are too many

    # --- in the driver

    @plain_errors
    def initialOffset(self) -> Offsets:
        options, place = self._options, self._options.start
        at_the_end = place.time is None and place.offsets == "latest"
        self._hold("latest" if at_the_end else "earliest")
        if place.time is not None:
            topics = held(self._broker(), options.filters, place.time)
            self._initial = {name: topic.start for name, topic in topics.items()}
        elif options.durable is not None and isinstance(place.offsets, str):
            self._initial = self._cursors(options.durable)
        else:
            named = {} if isinstance(place.offsets, str) else place.offsets
            self._initial = {name: offset for name, offset in named.items() if isinstance(offset, int)}
            for name, topic in self._topics().items():
                offset = place.of(name, "earliest")
                if isinstance(offset, str):
                    self._initial[name] = topic.first if offset == "earliest" else topic.next
                elif offset > topic.next:
                    raise NoSuchOffset(
                        f"The option 'startingOffsets' asks for topic {name!r} from {offset}; it ends at {topic.next}."
                    )
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target_time = time_of_day()
        self._target = {name: topic.next for name, topic in self._topics().items()}

    @plain_errors
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        began, looked = time.monotonic(), self._target_time or time_of_day()
        self._hold("earliest")
        topics = self._topics()
        self._acknowledge(start, topics)
        initial = start == self._initial
        begins: dict[str, int] = {}
        waiting: dict[str, int] = {}  # how many messages, of the topics that have some
        new: dict[str, int] = dict(start) if initial else {}
        for name, topic in topics.items():
            begin = start.get(name)
            if begin is None or self._is_another(topic, begin):
                begin = new[name] = topic.first
            for start_, stop in without([(begin, topic.first)], topic.skipped):
                checked(Range(name, start_, stop), None, fail=self._options.fail_on_data_loss)
            end = topic.next if self._target is None else min(topic.next, self._target.get(name, 0))
            begins[name] = max(begin, topic.first)
            if count := sum(stop - start_ for start_, stop in without([(begins[name], end)], topic.skipped)):
                waiting[name] = count
        taken = self._taken(waiting, limit)
        stands = {name: offset for name, offset in start.items() if " " not in name}
        if self._options.idle_trigger is not None and all(taken.get(name) for name in waiting):
            stands[LOOKED] = str(looked)
        if not any(taken.values()):
            if not initial and not waiting and self.goes_by_clock(start):
                return stands | {
                    LOOKED: str(looked + 1)
                }  # Spark begins nothing where the offsets are the same
            self._rest(time.monotonic() - began)
            return start
        self._silent_since = self._last_batch = time.monotonic()
        ends = {
            name: _after(begins[name], count, topics[name].skipped) for name, count in taken.items() if count
        }
        latest: Offsets = stands | ends
        found = {name: offset for name, offset in new.items() if name in ends or initial}
        if found:
            latest[NEW_TOPICS] = found
        return latest

    def reportLatestOffset(self) -> Offsets | None:
        """As of the last look: a report is nothing to wait for, or to fail by."""
        return None if self._seen is None else {name: topic.next for name, topic in self._seen.items()}

    @plain_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        self._checkpoint.sync_plan()
        options, wanted = self._options, between(start, end)
        if not wanted:
            return []
        topics = self._few(wanted) or held(self._broker(), options.filters)
        there = [checked(one, topics.get(one.topic), fail=options.fail_on_data_loss) for one in wanted]
        there = present([one for one in there if one.rows], topics)
        rows = sum(one.rows for one in there)
        if rows:
            self._weight = sum(one.rows * topics[one.topic].weight for one in there if one.rows) / rows
        parts: list[InputPartition] = []
        if self.mixes_topics and options.min_partitions == 1 and rows * self._weight > LEAST:
            parts += slices(there, topics)  # of less, the broker may have each topic in memory
        return parts or [*tasks(there, topics, options.min_partitions, options.max_records)]

    @plain_errors
    def commit(self, end: Offsets) -> None:
        if self._options.durable is not None:  # mostly, `latestOffset` has done so already
            self._acknowledge(end, self._seen or self._topics())

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close(0.0)

    # --- in a task

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, Task):
            return iter(())
        from stafeta.pipeline.connector.reading import batches

        return each_plain(batches(self._options, arrow_schema(self._schema), partition))

    # --- the broker

    def _broker(self) -> "Connection":
        if self._connection is None:
            self._connection = self._options.address.connect()
        return self._connection

    def _topics(self) -> "dict[str, TopicInfo]":
        found = {}
        for filter_ in self._options.filters:
            for topic in self._broker().topics(filter_):
                found[topic.topic] = topic
        self._seen = topics = dict(sorted(found.items()))
        return topics

    def _few(self, wanted: Sequence[Range]) -> dict[str, Held] | None:
        """The topics as they were last looked at, where so little is wanted that one task reads it in any case: then
        nobody has to be asked what their messages weigh, but now and then."""
        self._guesses = (self._guesses + 1) % _GUESSES
        if not self._guesses or sum(one.rows for one in wanted) * self._weight > LEAST:
            return None
        known = self._seen or {}
        seen = [known.get(one.topic) for one in wanted]
        if any(one is None or one.next < range_.stop for one, range_ in zip(seen, wanted, strict=True)):
            return None  # a micro-batch that was planned before
        return {
            one.topic: Held(one.topic, one.first, one.next, one.first, one.next, self._weight, one.skipped)
            for one in seen
            if one is not None
        }

    def _hold(self, start: str) -> None:
        """From now on nothing is collected that was not acknowledged."""
        if self._options.durable is not None and not self._held:
            for filter_ in self._options.filters:
                self._broker().hold(filter_, name=self._options.durable, start=start)
            self._held = True

    def _cursors(self, name: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for filter_ in self._options.filters:
            for topic, floor in self._broker().cursors(filter_, name=name).items():
                found[topic] = min(floor, found.get(topic, floor))
        return dict(sorted(found.items()))

    def _acknowledge(self, offsets: Offsets, topics: "Mapping[str, TopicInfo]") -> None:
        self._checkpoint.sync_all()
        if self._options.durable is None:
            return
        done = {
            name: offsets[name]
            for name, topic in topics.items()
            if self._done.get(name, 0) < offsets.get(name, 0) <= topic.next
        }
        for filter_ in self._options.filters:
            matches = matcher(filter_)
            mine = {name: offset for name, offset in done.items() if matches(name)}
            if mine:
                self._broker().acknowledge(filter_, mine, name=self._options.durable)
        self._done |= done

    # --- how much

    def _is_another(self, topic: "TopicInfo", begin: int) -> bool:
        if begin <= topic.next:
            return False
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"Topic {topic.topic!r} ends at offset {topic.next}, but the query has read it up to {begin}: the "
                "broker's log is another one than before. Start the query with a new checkpoint, or let it read the "
                "topic from its beginning with option failOnDataLoss=false."
            )
        return True

    def _taken(self, waiting: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How many messages of each topic the next micro-batch has."""
        total = sum(waiting.values())
        if isinstance(limit, ReadAllAvailable) or not total:
            return waiting
        if self._is_too_little(total):
            return {}
        most = self._options.max_offsets
        if most is None or total <= most:
            return waiting
        self._turn += most
        return shared(waiting, most, self._turn)

    def goes_by_clock(self, start: Offsets) -> bool:
        """Whether it is time for a micro-batch without messages, after the one that ended here."""
        every, now = self._options.idle_trigger, time.monotonic()
        if every is None or self._is_closed:
            return False
        if self._target is not None:
            self._is_closed = True
            return True
        if now < self._last_batch + every:
            return False
        if self._last_batch > self._silent_since + self._options.idle_trigger_for:
            return False
        self._last_batch = now
        return True

    def _rest(self, took: float) -> None:
        """Spark asks again at once where nothing has come: the broker has other things to do."""
        if self._target is None:
            time.sleep(min(max(_REST, took * 9), 1.0))

    def _is_too_little(self, total: int) -> bool:
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if total < least and now < self._waiting_since + self._options.max_delay:
            return True
        self._waiting_since = None
        return False


def between(start: Offsets, end: Offsets) -> list[Range]:
    """What a micro-batch holds that begins and ends with these offsets."""
    new: Mapping[str, int] = end.get(NEW_TOPICS, {})
    begins = {name: new.get(name, start.get(name, 1)) for name in sorted(end) if " " not in name}
    # Files that are made of them are in order.
    return [Range(name, begin, end[name]) for name, begin in begins.items() if begin < end[name]]


def _after(begin: int, count: int, skipped: Sequence[tuple[int, int]]) -> int:
    """The offset after so many messages."""
    end = begin + count
    for start, stop in skipped:
        if start < end and stop > begin:
            end += stop - max(start, begin)
    return end


def time_of_day() -> int:
    """In microseconds since 1970."""
    return time.time_ns() // 1000


class FailedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In place of a stream that cannot be made. Spark loses an error that is raised while it makes one (its
    python_streaming_source_runner stops a reader that is not there), so this one raises it when it is first asked."""

    def __init__(self, error: StafetaError) -> None:
        self._error = error

    @plain_errors
    def initialOffset(self) -> Offsets:
        raise self._error

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    @plain_errors
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        raise self._error

    @plain_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        raise self._error


def shared(waiting: Mapping[str, int], most: int, turn: int = 0) -> dict[str, int]:
    """`most` messages, parted among topics in proportion to what waits in each, but at least one of each; where there
    are too many topics, it is the turn of some."""
    names = list(waiting)
    if most <= len(names):
        first = turn % len(names)
        return dict.fromkeys((names[first:] + names[:first])[:most], 1)
    rest, total = most - len(names), sum(waiting.values()) - len(names)
    parted = {name: 1 + rest * (count - 1) // total for name, count in waiting.items()}
    left = most - sum(parted.values())
    # What rounding has left goes to those that lost most by it.
    for name in sorted(names, key=lambda name: rest * (waiting[name] - 1) % total, reverse=True)[:left]:
        parted[name] += 1
    return parted
