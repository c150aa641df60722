"""The job deadletter: what is not of its kind, or not as its topic's JSON schema has it, to `dead/<topic>` and to the
table `dead`, with the reason. (docs/alerts.md#dead-letters)

1. Messages that are in order are only looked at; those that are not stay where they are, too.
2. Numbers and text are looked at by Spark itself. Only what is JSON, or has a schema, is shown to Python.
3. A micro-batch is worked out once; what comes of it goes to the lake and to topics, each of which takes it once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stafeta.names import MAX_BYTES, MAX_LEVELS
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.job import Context, Job, without_own_topics
from stafeta.pipeline.jobs import BUILT_IN, schemas
from stafeta.pipeline.jobs.schemas import Schema
from stafeta.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "deadletter"
PREFIX: Final = "dead"
COLUMNS: Final = "topic,offset,timestamp,kind,payload"
LARGEST: Final = 256 << 10
"""Characters, or bytes, of a payload that go to the topic. The lake has all of it."""

_FORMS: Final = {  # as the doors have them (stafeta.message)
    "int": r"^-?[0-9]{1,1000}\z",
    "short_real": r"^-?[0-9]{1,1000}\.[0-9][0-9]\z",
    "float": r"^-?[0-9]{1,1000}(\.[0-9]{1,1000})?\z",
}
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def dead(messages: "DataFrame", declared: Sequence[Schema] = ()) -> "DataFrame":
    """The messages (`COLUMNS`) that are not in order, each with its reason."""
    from pyspark.sql import functions as f

    from stafeta.pipeline.view import matching

    text = f.col("payload").cast("string")
    shown = f.col("kind") == "json"
    if declared:
        shown = shown | matching([one.topics for one in declared])
    reason = f.when(shown, _checked(declared)("topic", "kind", f.when(shown, f.col("payload"))))
    for kind, form in _FORMS.items():
        wrong = (f.col("kind") == kind) & ~text.rlike(form)
        reason = reason.when(wrong, _not_of(f.col("kind")))
    reason = reason.when((f.col("kind") == "string") & ~f.is_valid_utf8(text), _not_of(f.col("kind")))
    return messages.withColumn("reason", reason).where("reason IS NOT NULL")


def _not_of(kind: "Column") -> "Column":
    from pyspark.sql import functions as f

    return f.concat(f.lit("It is not of the kind "), kind, f.lit("."))


def _checked(declared: Sequence[Schema]) -> "Callable[..., Column]":
    """What tells why a message is not in order. One without a payload is."""
    import pyarrow as pa
    from pyspark.sql import functions as f

    # Spark goes by the annotations.
    def reasons(topics: pa.Array, kinds: pa.Array, payloads: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        columns: list[list[Any]] = [column.to_pylist() for column in (topics, kinds, payloads)]
        found = [
            None if payload is None else schemas.reason(declared, topic, kind, payload)
            for topic, kind, payload in zip(*columns, strict=True)
        ]
        return pa.array(found, pa.string())

    checked: Callable[..., Column] = f.arrow_udf(reasons, "string")  # type: ignore[attr-defined]
    return checked


def letters(rows: "DataFrame") -> "DataFrame":
    """What was found, as messages for the sink."""
    from pyspark.sql import functions as f

    text = f.col("payload").cast("string")
    readable = f.is_valid_utf8(text)
    payload = f.when(readable, f.substring(text, 1, LARGEST)).otherwise(
        f.base64(f.substring("payload", 1, LARGEST))
    )
    length = f.when(readable, f.char_length(text)).otherwise(f.octet_length("payload"))
    body = f.struct(
        "topic",
        "offset",
        f.date_format(f.to_utc_timestamp("timestamp", f.current_timezone()), _TIME).alias("timestamp"),
        "kind",
        payload.alias("payload"),
        f.when(~readable, f.lit("base64")).alias("encoding"),
        f.when(length > LARGEST, length).alias("length"),
        "reason",
    )
    fits = (f.octet_length("topic") <= MAX_BYTES - len(PREFIX) - 1) & (
        f.size(f.split("topic", "/")) < MAX_LEVELS
    )
    topic = f.when(fits, f.concat(f.lit(f"{PREFIX}/"), f.col("topic"))).otherwise(PREFIX)
    return rows.select(topic.alias("topic"), f.to_json(body).alias("payload"), f.lit("json").alias("kind"))


@dataclass(frozen=True)
class Burial:
    """Where they go. It can be sent to other processes."""

    lake: Lake
    broker: str
    name: str

    def __call__(self, batch: "DataFrame", number: int) -> None:
        rows = batch.persist()
        try:
            if not rows.count():
                return
            self.lake.append("dead", rows, self.name, number)
            writer = letters(rows).write.format("stafeta").mode("append").option("broker", self.broker)
            writer.option("txnAppId", self.name).option("txnVersion", number).save()
        finally:
            rows.unpersist()


def start(context: Context) -> "Sequence[StreamingQuery]":
    where = context.config.deadletter.schemas
    declared = schemas.load(where) if where else ()
    name = f"{NAME}/{checkpoint_files.identity(context.checkpoint)}"
    burial = Burial(context.lake, context.config.pipeline.broker, name)
    found = dead(without_own_topics(context.stream(columns=COLUMNS)), declared)
    return [context.start(found.writeStream.foreachBatch(burial))]


JOB = Job(NAME, BUILT_IN[NAME].about, start)
