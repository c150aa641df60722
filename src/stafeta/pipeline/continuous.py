"""A continuous query: SQL over the views `messages` and `readings`, whose rows go to a topic, exactly once.

1. The views are streams from the topics' first messages on, with a watermark on `timestamp`.
2. What comes of it goes to the topic as docs/cli.md says: the sink's columns as they are, others as JSON objects.
3. What the query writes it does not read.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stafeta.errors import ConfigError, InvalidName
from stafeta.names import check_name, filters_of
from stafeta.pipeline.job import Context, Job, release
from stafeta.pipeline.runner.failures import failure_of
from stafeta.pipeline.sink_writer import outflow
from stafeta.pipeline.view import COLUMNS, NUMBERS, READINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

VIEWS: Final = {"messages": COLUMNS, "readings": READINGS}
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_PLACE: Final = re.compile(r"Line (\d+), position \d+: ")


def continuous(path: Path, into: str, *, name: str | None = None, watermark: float = 10.0) -> Job:
    """The job of a file with a SELECT; it has the file's name unless it is given another."""
    try:
        statement = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None
    if not statement.strip():
        raise ConfigError(f"{path} is empty: write a SELECT into it.")
    try:
        check_name(into)
    except InvalidName as error:
        raise ConfigError(f"--into: {error}") from None
    title = name or _NAME.sub("-", path.stem).strip("-.") or "sql"

    def start(context: Context) -> "Sequence[StreamingQuery]":
        pipeline = context.config.pipeline
        filters = filters_of(pipeline.subscribe)
        for view in VIEWS:
            release(pipeline.broker, holder(context, view), filters)
        rows = selected(context, statement, str(path), into, watermark)
        return (context.start(outflow(rows, pipeline.broker, into)),)

    return Job(title, f"the query in {path.name}, into {into}", start, source=str(path.absolute()))


def selected(context: Context, statement: str, source: str, into: str, watermark: float) -> "DataFrame":
    """The rows that the statement selects of the streams."""
    from pyspark.errors import AnalysisException, ParseException

    for view, columns in VIEWS.items():
        frame = context.stream(held=False, durable=holder(context, view), columns=",".join(columns))
        frame = frame.where(frame["topic"] != into)
        if view == "readings":
            frame = frame.where(frame["kind"].isin(*NUMBERS))
        late = f"{round(watermark * 1000)} milliseconds"
        frame.withWatermark("timestamp", late).createOrReplaceTempView(view)
    try:
        rows = context.spark.sql(statement.rstrip().rstrip(";"))
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"{source}{mistake(error)}") from None
    if not rows.isStreaming:
        raise ConfigError(
            f"{source}: a continuous query selects from messages or readings, and this one does not."
        )
    return rows


def holder(context: Context, view: str) -> str:
    """The durable name of a view; there is a subscription if the statement reads it."""
    return f"{context.durable}/{view}"


def mistake(error: Exception) -> str:
    """What Spark says of a statement, with the line in it: ", line 3: …"."""
    sentence = failure_of(error).sentence
    found = _PLACE.match(sentence)
    return f", line {found[1]}: {sentence[found.end() :]}" if found else f": {sentence}"
