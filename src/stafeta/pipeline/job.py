"""What a job is, and what it is given.

1. A job is a function from a `Context` to the streaming queries that it has started; a batch job does its work there,
   and starts none.
2. What a job computes is a pure function of DataFrames beside it, which needs no broker to be tested.
3. Through Spark Connect the functions of `foreachBatch` run in the server's Python: they take plain values with them,
   never a session, a `Context` or a lock.
4. Jobs do not read what jobs write: `without_own_topics` and `is_own_topic` leave it out.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast, overload

from stafeta.errors import ConfigError, InvalidName
from stafeta.names import FLIGHT_PREFIX, check_filter, check_name, filters_of
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.checkpoint_age import check_age
from stafeta.pipeline.spark_log import recover

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from stafeta.config import Config
    from stafeta.pipeline.lake import Lake

OWN: Final = ("rollup", "alerts", "dead")
"""The first levels of the topics that jobs write."""

MARK: Final = "__stafeta_job__"
"""The attribute of a function that is a job."""

log = logging.getLogger("stafeta.pipeline")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Context:
    """What a job runs with. `checkpoint` is a folder, or URL, of its own."""

    spark: "SparkSession"
    config: "Config"
    name: str
    checkpoint: str
    once: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stopping: Event = field(default_factory=Event, repr=False)
    """Set when the job is to stop: for batch jobs that wait for something; Spark's work is interrupted anyway."""

    figures: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def lake(self) -> "Lake":
        from stafeta.pipeline.lake import Lake

        return Lake(self.config.lake)

    @cached_property
    def durable(self) -> str:
        """The job's durable name. It belongs to the folder that the checkpoints are in, where the job's place is: two
        pipelines on one broker do not share it, and one whose checkpoint is lost goes on under it."""
        return checkpoint_files.durable_name(self.checkpoint.rpartition("/")[0], self.name)

    def stream(
        self, subscribe: str | None = None, *, held: bool = True, source: str = "stafeta", **options: object
    ) -> "DataFrame":
        """A stream of topics (those of `pipeline.subscribe`), from their first message on, under a durable name of the
        job's own. Options are those of docs/spark.md; None takes one away. A job that reads two streams gives the
        second another `durable`. One that may not be read at all is not `held`: the broker holds it once it is."""
        pipeline = self.config.pipeline
        chosen: dict[str, object] = {
            "broker": pipeline.broker,
            "subscribe": subscribe or pipeline.subscribe,
            "startingOffsets": "earliest",
            "durable": None if "durable" in options else self.durable,
            "checkpointLocation": self.checkpoint,
            "maxOffsetsPerTrigger": pipeline.batch,
        } | options
        if held and chosen["durable"] is not None:
            start = "latest" if chosen["startingOffsets"] == "latest" else "earliest"
            name, topics = str(chosen["durable"]), str(chosen["subscribe"])
            check_age(pipeline.broker, name, filters_of(topics), self.checkpoint)
            hold(pipeline.broker, name, topics, start)
        reader = self.spark.readStream.format(source)
        for name, value in chosen.items():
            if value is not None:
                reader = reader.option(name, _text(value))
        return reader.load()

    def start(
        self, writer: "DataStreamWriter", part: str = "", *, checkpoint: str | None = None
    ) -> "StreamingQuery":
        """Starts a query of the job: of its only one, or of a part that has a name. Its checkpoint is the job's, or in
        it, if no other is given."""
        name = f"{self.name}/{part}" if part else self.name
        place = checkpoint or (f"{self.checkpoint}/{part}" if part else self.checkpoint)
        recover(place)
        writer = writer.queryName(name).option("checkpointLocation", place)
        if self.once:
            writer = writer.trigger(availableNow=True)
        else:
            milliseconds = round(self.config.pipeline.trigger * 1000)
            writer = writer.trigger(processingTime=f"{milliseconds} milliseconds")
        return writer.start()

    def note(self, **figures: object) -> None:
        """Figures for the job's reports, such as late=3; each stays until it is noted again."""
        self.figures.update(figures)


@dataclass(frozen=True)
class Job:
    """Something to run, under a name. `start` returns the queries that it has started; a batch job returns none.

    `figures` is asked for each report, and goes into it beside what the job has noted. `source` is the file that a
    user's job comes from: one of another file does not take over its checkpoints. A job that `replans` finds out when
    it starts which messages are lost: it is started again if a query misses some.
    """

    name: str
    about: str
    start: Callable[[Context], "Sequence[StreamingQuery]"]
    batch: bool = False
    figures: Callable[[Context], Mapping[str, Any]] | None = None
    source: str = ""
    replans: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == "control":  # whose topic is for orders
            raise ConfigError(
                f"A job cannot be named {self.name!r}: write letters, digits, '.', '-' and '_', at most 64."
            )


def hold(address: str, name: str, filters: str, start: str = "earliest") -> None:
    """Lets the broker hold what a job is to read: the topics of these filters, which have commas between. What it once
    held under this name beside them, nobody would ever acknowledge: it is released."""
    from stafeta import connect

    wanted = filters_of(filters)
    with connect(address) as broker:
        for one in wanted:
            broker.hold(one, name=name, start=start)
    release(address, name, wanted)


def release(address: str, name: str, wanted: Collection[str]) -> None:
    """Lets the broker hold nothing under a name but these filters."""
    from stafeta import connect

    with connect(address) as broker:
        for known in broker.subscriptions():
            if known.client == FLIGHT_PREFIX + name and known.filter not in wanted:
                log.info("%s does not read %s any more.", name, known.filter)
                broker.unsubscribe(known.filter, name=name)


def is_own_topic(name: str) -> bool:
    """Whether a job has written what is in a topic."""
    return name.partition("/")[0] in OWN


def without_own_topics(frame: "DataFrame") -> "DataFrame":
    """The rows of a frame of messages that no job has written."""
    return frame.where(f"NOT topic RLIKE '^({'|'.join(OWN)})(/|$)'")


Starting: TypeAlias = "Callable[[Context], StreamingQuery | Sequence[StreamingQuery] | None]"
Transforming: TypeAlias = "Callable[[DataFrame], DataFrame]"
_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def job(function: _F, /) -> _F: ...


@overload
def job(
    *,
    name: str | None = None,
    about: str | None = None,
    subscribe: str | None = None,
    into: str | None = None,
    batch: bool = False,
) -> Callable[[_F], _F]: ...


def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    about: str | None = None,
    subscribe: str | None = None,
    into: str | None = None,
    batch: bool = False,
) -> Any:
    """Marks a function as a job for `stafeta pipeline run FILE`; it stays the function that it is.

    With `subscribe` or `into` the function takes the stream of these topics, decoded, and returns what goes to the
    topic `into`: the sink's columns (docs/spark.md#writing), or others, which go as JSON. Without `into` a column topic
    says where to. With neither, the function takes a `Context`, and returns the queries that it has started.
    """

    def mark(marked: Callable[..., Any]) -> Callable[..., Any]:
        title = name or marked.__name__.replace("_", "-")
        lines = (marked.__doc__ or "").strip().splitlines()
        described = about or (lines[0] if lines else "")
        if subscribe is None and into is None:
            start = _started_by(cast("Starting", marked))
        else:
            if batch:
                raise ConfigError(f"The job {title!r} reads a stream, so that it is no batch job.")
            start = _piped_through(cast("Transforming", marked), title, subscribe, into)
        setattr(marked, MARK, Job(title, described, start, batch))
        return marked

    return mark if function is None else mark(function)


def _started_by(function: "Starting") -> "Callable[[Context], Sequence[StreamingQuery]]":
    def start(context: Context) -> "Sequence[StreamingQuery]":
        started = function(context)
        if started is None:
            return ()
        return tuple(started) if isinstance(started, Sequence) else (started,)

    return start


def _piped_through(
    function: "Transforming", title: str, subscribe: str | None, into: str | None
) -> "Callable[[Context], Sequence[StreamingQuery]]":
    try:
        if subscribe is not None:
            for one in subscribe.split(","):
                check_filter(one.strip())
        if into is not None:
            check_name(into)
    except InvalidName as error:
        raise ConfigError(f"The job {title!r}: {error}") from None

    def start(context: Context) -> "Sequence[StreamingQuery]":
        from stafeta.pipeline.sink_writer import outflow

        rows = context.stream(subscribe, decode=True)
        if into is not None:  # or it would read what it writes
            rows = rows.where(rows["topic"] != into)
        return (context.start(outflow(function(rows), context.config.pipeline.broker, into)),)

    return start


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
