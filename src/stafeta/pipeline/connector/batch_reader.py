"""Reading topics in batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from stafeta.errors import NoSuchOffset
from stafeta.pipeline.connector.errors import each_plain, plain_errors
from stafeta.pipeline.connector.options import Offset, ReadOptions, StartOffset
from stafeta.pipeline.connector.planning import Held, Range, Task, checked, held, slices, tasks
from stafeta.pipeline.connector.pushdown import Wanted, narrowed
from stafeta.pipeline.connector.spark_schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self.wanted = Wanted()

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self.wanted
        since = _latest(options.start.time, wanted.since)
        with options.address.connect() as connection:
            topics = held(connection, options.filters, since, options.end.time)
        ranges = []
        for name, topic in topics.items():
            if wanted.topic(name):
                found = _range(topic, options, since)
                start, stop = wanted.offsets(found.start, found.stop)
                ranges.append(Range(name, start, stop))
        parts: list[InputPartition] = []
        if options.min_partitions == 1 and options.max_records is None:
            parts += slices(ranges, topics)
        return parts or [*tasks(ranges, topics, options.min_partitions, options.max_records)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(
            partition, Task
        ):  # there is nothing to read, for which Spark makes a task of its own
            return iter(())
        from stafeta.pipeline.connector.reading import batches

        return each_plain(batches(self._options, arrow_schema(self._schema), partition, self.wanted))


class NarrowedReader(TopicReader):
    """Takes the filters that Spark pushes, for one query."""

    @plain_errors
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.wanted, rest = narrowed(filters)
        return rest


def _range(topic: Held, options: ReadOptions, since: int | None) -> Range:
    """What is to be read of a topic, filters on offsets aside."""
    start = _at(options.start, topic, "earliest") if options.start.time is None else topic.start
    stop = _at(options.end, topic, "latest") if options.end.time is None else topic.stop
    if stop > topic.next and options.fail_on_data_loss:
        raise NoSuchOffset(
            f"The option 'endingOffsets' asks for topic {topic.topic!r} up to {stop}; it ends at {topic.next}."
        )
    asked = Range(topic.topic, start, max(start, min(stop, topic.next)))
    there = checked(asked, topic, fail=options.fail_on_data_loss)
    if since is not None:
        there = there._replace(start=min(max(there.start, topic.start), there.stop))
    return there


def _at(place: StartOffset, topic: Held, otherwise: Any) -> int:
    offset: Offset = place.of(topic.topic, otherwise)
    return {"earliest": topic.first, "latest": topic.next}[offset] if isinstance(offset, str) else offset


def _latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
