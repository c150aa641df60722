"""What a stream of any columns becomes when it goes to topics.

1. Where a frame has the sink's columns and no others (payload or value, and topic, kind, timestamp), its rows are
   messages as they are.
2. Otherwise each row is a message of kind json: an object of its columns.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PAYLOADS: Final = ({"payload"}, {"value"})
_BESIDE: Final = {"topic", "kind", "timestamp"}


def outflow(rows: "DataFrame", broker: str, into: str | None) -> "DataStreamWriter":
    """A writer of these rows to a topic, or to the topics of a column."""
    writer = messages(rows, into).writeStream.format("stafeta").option("broker", broker)
    return writer if into is None else writer.option("topic", into)


def messages(rows: "DataFrame", into: str | None) -> "DataFrame":
    """The rows as messages. With a topic given, an object's column topic is its own; without, it says where to."""
    from pyspark.sql import functions as f

    columns = set(rows.columns)
    if columns - _BESIDE in _PAYLOADS:
        return rows
    fields = [rows[name] for name in rows.columns if into is not None or name != "topic"]
    options = {"ignoreNullFields": "false"}
    payload = f.to_json(f.struct(*fields), options).alias("payload")
    where = [rows["topic"]] if into is None and "topic" in columns else []
    return rows.select(*where, payload, f.lit("json").alias("kind"))
