"""`format("stafeta")`: what Spark asks a source for. (docs/spark.md)

Whatever is heavy is imported where it is used: Spark imports this module in every session, used or not.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

from stafeta.errors import ConfigError, InvalidSchema, StafetaError
from stafeta.pipeline.connector.errors import plain_errors
from stafeta.pipeline.connector.options import Misplaced, ReadOptions, WriteOptions
from stafeta.pipeline.connector.spark_schema import schema_of

if TYPE_CHECKING:
    from stafeta.pipeline.connector.batch_reader import TopicReader
    from stafeta.pipeline.connector.sink import BatchSink, StreamSink
    from stafeta.pipeline.connector.stream import FailedStream, TopicStream

_TEXT = (StringType,)
_WRITTEN = {
    "topic": _TEXT,
    "payload": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "kind": _TEXT,
    "timestamp": (TimestampType,),
}


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "stafeta"

    @plain_errors
    def schema(self) -> StructType:
        # Spark asks before it says whether this is to be a stream.
        try:
            options = ReadOptions.of(self.options, streaming=True)
        except Misplaced:
            options = ReadOptions.of(self.options, streaming=False)
        return schema_of(options.columns, decode=options.decode)

    @plain_errors
    def reader(self, schema: StructType) -> "TopicReader":
        from stafeta.pipeline.connector.batch_reader import NarrowedReader, TopicReader

        options = ReadOptions.of(self.options, streaming=False)
        return (NarrowedReader if options.pushdown else TopicReader)(options, schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> "TopicStream | FailedStream":
        from stafeta.pipeline.connector.stream import FailedStream, TopicStream

        try:
            return TopicStream(ReadOptions.of(self.options, streaming=True), schema)
        except StafetaError as error:
            return FailedStream(error)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> "BatchSink":
        from stafeta.pipeline.connector.sink import BatchSink

        if overwrite:
            raise ConfigError("A topic cannot be overwritten, only added to: write with mode('append').")
        options = WriteOptions.of(self.options, streaming=False)
        check_written(schema, options)
        return BatchSink(options)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamSink":
        from stafeta.pipeline.connector.sink import StreamSink

        options = WriteOptions.of(self.options, streaming=True)
        check_written(schema, options)
        return StreamSink(options)


def check_written(schema: StructType, options: WriteOptions) -> None:
    """Raise where rows of this schema cannot be messages."""
    names = schema.fieldNames()
    for field in schema.fields:
        allowed = _WRITTEN.get(field.name)
        if allowed is None:
            raise InvalidSchema(
                f"The column {field.name!r} is none that a message has; write {', '.join(_WRITTEN)} only, and drop it."
            )
        if not isinstance(field.dataType, allowed):
            types = " or ".join(kind.typeName() for kind in allowed)
            raise InvalidSchema(
                f"The column {field.name!r} is of the type {field.dataType.simpleString()}; cast it to {types}."
            )
    if "payload" in names and "value" in names:
        raise InvalidSchema("There are both a column 'payload' and a column 'value'; drop one of them.")
    if "payload" not in names and "value" not in names:
        raise InvalidSchema(f"There is no column 'payload' or 'value' among {', '.join(names)}.")
    if "topic" not in names and options.topic is None:
        raise InvalidSchema("Name the topic, by option('topic', …) or in a column 'topic'.")
