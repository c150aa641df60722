"""Statements on lake and log.

1. The views are made anew for each statement: a result is what was there when it began. A text that names none of them
   needs neither a lake nor a broker. `messages` and `readings`, which may be made for one statement alone, are dropped
   once it is planned: another that comes by them in a way that is not known here finds none, instead of a part of them.
2. A broker that is away leaves the lake, and a warning says how far that goes.
3. Spark does not tell a Python source which columns a query uses, but its optimised plan does: planning reads nothing,
   and then the views are made with those columns only, numbers among them as numbers; and if there is one scan of the
   log, with its filters. Where topics and offsets are all that is used, no message is read at all; a statement that
   names no others is first planned on a view whose others fail. Where the plan is not understood, all columns are
   read, and where the log is short, too: planning twice would take longer.
4. Who asks through a page only reads (`read_only`), and gets variants as their JSON: he need not have PySpark. Nothing
   is put in the place of `${...}` there: Spark would take it from its settings and the pipeline's environment.
5. Cancelling ends what the thread that carries out a statement has started, and nothing else in the session's Spark.
"""

import re
import socket
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa

from stafeta.errors import NoReply, StafetaError
from stafeta.pipeline.runner.queries import interrupt, is_local, mark
from stafeta.pipeline.sql.errors import translated
from stafeta.pipeline.sql.last import last_of
from stafeta.pipeline.sql.read_only import check_reads_only, each
from stafeta.pipeline.sql.results import VIEWS, Done, Output, Statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stafeta.config import Config
    from stafeta.pipeline.view import Stored

_NAMED: Final = re.compile(rf"\b({'|'.join(VIEWS)}|show|describe|desc)\b", re.IGNORECASE)
_ANY: Final = re.compile(r"\b(show|describe|desc)\b", re.IGNORECASE)  # of the views
# What may name views that are not in the text: by a variable, or by a view that another session has made of them.
_HIDES: Final = re.compile(r"\b(identifier|execute|global_temp)\b|\$\{", re.IGNORECASE)
_MAKES: Final = re.compile(r"\b(create|alter|cache|execute)\b|\$\{", re.IGNORECASE)
_ONCE: Final = ("messages", "readings")  # the views of which there may be a part, for one statement
_QUERY: Final = re.compile(r"\s*SELECT\b", re.IGNORECASE)
# What a statement says that uses more of messages than topics and offsets.
_READ: Final = re.compile(
    r"\b(timestamp|producer|source|kind|payload|counter|text|insert)\b|(?<!\()\*", re.IGNORECASE
)
_SUBSTITUTE: Final = "spark.sql.variable.substitute"
_CUT: Final = "more fields"  # what a plan says that does not tell all
_LONG: Final = (
    200_000  # messages that are read of the log, which make it worth looking which columns are used
)
_AROUND: Final = 1000  # messages among which the last rows are looked for first
_PATIENCE: Final = 2.0  # seconds that a broker has to take a connection
_SCAN: Final = "] stafeta"  # how a line of a plan ends that is about a scan of the log
_CHEAPEST: Final = "offset"  # of the columns: a task knows it without asking


class Queries(Statements):
    """Statements, one after the other, in a session. `tell` takes sentences for whoever asks; from `long` messages on,
    a log is long."""

    def __init__(
        self, spark: "SparkSession", config: "Config", tell: Callable[[str], None], long: int = _LONG
    ) -> None:
        self._spark = spark
        self._config = config
        self._tell = tell
        self._long = long
        self._built_on = False
        self._cancelled = False
        self._tag = f"sql-{uuid4().hex}"
        self.read_only = False

    def attempt(self, statement: str, output: Output, limit: int | None = None) -> Done:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        self._cancelled = False
        try:
            mark(self._spark, self._tag)
            if self.read_only:
                self._spark.conf.set(_SUBSTITUTE, "false")
                check_reads_only(self._spark, statement)
            frame = self._frame(statement)
            return self._write(_without_variants(frame) if self.read_only else frame, output, limit)
        except (PySparkException, Py4JError, StafetaError) as error:
            if self._cancelled:
                raise KeyboardInterrupt from None
            raise translated(error, statement) from None

    def cancel(self) -> None:
        self._cancelled = True
        if is_local(self._spark):
            interrupt(self._spark, self._tag)
        else:
            self._spark.interruptAll()

    def _write(self, frame: "DataFrame", output: Output, limit: int | None) -> Done:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(frame.schema, timezone="UTC")
        output.begin(schema)
        rows, cut = 0, False
        if schema.names:
            batches = _batches(frame if limit is None else frame.limit(limit + 1), schema)
            for batch in batches:
                if self._cancelled:
                    raise KeyboardInterrupt
                rows += batch.num_rows
                if limit is not None and rows > limit:
                    batch = batch.slice(0, batch.num_rows - (rows - limit))
                    rows, cut = limit, True
                output.write(batch)
                if cut:
                    break
        output.end()
        return Done(rows, cut, bool(schema.names))

    def _frame(self, statement: str) -> "DataFrame":
        hides = bool(_HIDES.search(statement))
        named = hides or bool(_NAMED.search(statement))
        # A view of the user's own may be built on one of ours, and is not to grow old either.
        self._built_on |= named and bool(_MAKES.search(statement))
        if not named and not self._built_on:
            return self._spark.sql(statement)
        every = self._built_on or hides or bool(_ANY.search(statement))
        try:
            return self._with_views(statement, VIEWS if every else _views_in(statement))
        finally:
            if is_local(self._spark):  # Spark Connect plans when rows are asked for
                for name in _ONCE:
                    self._spark.catalog.dropTempView(name)

    def _with_views(self, statement: str, views: Collection[str]) -> "DataFrame":
        from stafeta.pipeline.view import Stored, known_unread

        log = self._look_for_broker()
        stored = Stored(self._spark, self._config, log=log)
        for sentence in stored.gone:
            self._tell(sentence)
        if self._may_be_known(statement) and (frame := self._known(stored, statement)) is not None:
            return frame
        long = is_local(self._spark) and stored.unarchived >= self._long
        stored.register(decoded=long, named=views)
        frame = self._spark.sql(statement)
        scans = scans_of(frame)
        columns = used_columns(scans)
        if (last := self._last(stored, frame, statement, views)) is not None:
            return last
        if columns is not None and (known_unread(columns) or long):
            stored.register(columns, decoded=long, pushdown=long and len(scans) == 1, named=views)
            frame = self._spark.sql(statement)
        elif long and scans:
            stored.register(named=views)  # to decode what may not be used would take longer
            frame = self._spark.sql(statement)
        return frame

    def _may_be_known(self, statement: str) -> bool:
        """Whether it is worth trying: a query, of nothing but what is known without reading a message."""
        return (
            is_local(self._spark)
            and not self._built_on
            and not _HIDES.search(statement)
            and _views_in(statement) == {"messages"}
            and _QUERY.match(statement) is not None
            and not _READ.search(statement)
        )

    def _known(self, stored: "Stored", statement: str) -> "DataFrame | None":
        """The result, where topics and offsets are all that the statement uses."""
        from stafeta.pipeline.view import UNKNOWN

        stored.register_known()
        frame = self._spark.sql(statement)
        plan: Any = frame._jdf.queryExecution().optimizedPlan()
        text = plan.toString()
        return None if UNKNOWN in text or _CUT in text else frame

    def _last(
        self, stored: "Stored", frame: "DataFrame", statement: str, views: Collection[str]
    ) -> "DataFrame | None":
        """The same result of the last messages of a topic alone, where it comes of these."""
        if not is_local(self._spark) or (asked := last_of(frame, statement)) is None:
            return None
        count = asked.rows if asked.every else asked.rows + _AROUND
        narrowed = stored.last(asked.topic, count, self._long)
        if narrowed is None:
            return None
        narrowed.register(named=views)
        found = self._spark.sql(statement)
        if asked.every or ((again := last_of(found, statement)) and again.has_enough(self._spark)):
            return found
        stored.register(named=views)
        return None

    def _look_for_broker(self) -> bool:
        """Whether the broker is there. Where it is not, the lake has to do."""
        from stafeta.addresses import read_flight
        from stafeta.pipeline.lake import Lake

        address = read_flight(self._config.pipeline.broker)
        place = urlsplit(address)
        try:
            socket.create_connection((place.hostname or "", place.port or 0), _PATIENCE).close()
            return True
        except OSError as error:
            reason = error.strerror or str(error)
        lake = Lake(self._config.lake)
        if not lake.has("messages"):
            raise NoReply(
                f"The broker at {address} does not answer ({reason}), and there is no lake in "
                f"{self._config.lake.warehouse}. Does it run, with its Flight door open there?"
            )
        snapshot = lake.table("messages").current_snapshot()
        until = "and that is empty"
        if snapshot is not None:
            time = datetime.fromtimestamp(snapshot.timestamp_ms // 1000, UTC)
            until = f"archived up to {time:%Y-%m-%d %H:%M:%S}Z"
        self._tell(f"The broker at {address} does not answer ({reason}): this is the lake alone, {until}.")
        return False


def _views_in(statement: str) -> set[str]:
    """The views that a statement may name."""
    return {found.lower() for found in _NAMED.findall(statement)}


def _without_variants(frame: "DataFrame") -> "DataFrame":
    """Each variant as its JSON."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import VariantType

    fields = frame.schema.fields
    if not any(isinstance(field.dataType, VariantType) for field in fields):
        return frame
    named = frame.toDF(*(f"c{number}" for number in range(len(fields))))  # of which none is there twice
    return named.select(
        *(
            (
                sf.to_json(f"c{number}") if isinstance(field.dataType, VariantType) else sf.col(f"c{number}")
            ).alias(field.name)
            for number, field in enumerate(fields)
        )
    )


Scans: TypeAlias = list[set[str] | None]
"""Each scan of the log, as the columns that are used of it: None for all."""


def scans_of(frame: "DataFrame") -> Scans:
    """The scans of the log in a query, none in a command, which was carried out when it was planned."""
    if not hasattr(frame, "_jdf"):  # through Spark Connect
        return []
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    found = list(_scans(plan, None))
    # A scan that was not come by is in an expression of a kind that nobody has thought of here.
    return found if len(found) == plan.toString().count(_SCAN) else [None] * len(found)


def used_columns(scans: Scans) -> list[str] | None:
    """The columns of the log that these scans use; None where that is all of them, or is not known."""
    from stafeta.pipeline.lake.tables import TABLES

    used = [columns for columns in scans if columns is not None]
    if not scans or len(used) < len(scans):
        return None
    columns = set[str]().union(*used)
    return None if columns.issuperset(TABLES["messages"].names) else sorted(columns) or [_CHEAPEST]


def _scans(plan: Any, used: set[str] | None) -> Iterator[set[str] | None]:
    """The scans of the log in a plan, each as the columns that are used of it: None for all. `used` is what those above
    use of what the plan gives."""
    kind = plan.nodeName()
    if kind == "DataSourceV2ScanRelation" and plan.relation().name() == "stafeta":
        yield used
    below: set[str] | None = None
    if kind in ("Project", "Aggregate"):
        below = _references(plan)
    elif kind == "Filter" and used is not None:
        below = used | _references(plan)
    for child in each(plan.children()):
        yield from _scans(child, below)
    for subquery in each(plan.subqueries()):
        yield from _scans(subquery, None)


def _references(plan: Any) -> set[str]:
    """The names of the columns in a node's expressions; a plan writes them as topic#12, offset#13L."""
    text = plan.references().toSeq().mkString(",")
    return {one.partition("#")[0] for one in text.split(",") if one}


def _batches(frame: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a frame in their order: a partition after the other, and no more than two in memory."""
    return _from_jvm(frame, schema) if hasattr(frame, "_jdf") else _from_server(frame, schema)


def _from_jvm(frame: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """What `toLocalIterator` does, in Arrow's batches: ten times as quick as in rows."""
    from pyspark.serializers import FramedSerializer
    from pyspark.util import _local_iterator_from_socket

    class Frames(FramedSerializer):
        def loads(self, data: bytes) -> bytes:
            return data

    jvm: Any = frame.sparkSession._jvm
    batches = frame._jdf.toArrowBatchRdd()
    served = jvm.org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(batches, True)
    for data in _local_iterator_from_socket(served, Frames()):
        yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def _from_server(frame: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same through Spark Connect, which sends batches anyway."""
    client = frame.sparkSession.client
    for part in client.to_table_as_iterator(frame._plan.to_proto(client), frame._plan.observations):
        if isinstance(part, pa.Table):
            yield from part.cast(schema).to_batches()
