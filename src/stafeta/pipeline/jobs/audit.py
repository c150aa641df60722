"""The job audit: proves from lake and log that nothing is missing, repeated or changed.

1. Everything may go on meanwhile. So what is held is looked up in this order: subscriptions, the log, the lake. A
   message moves from the log to the lake, is acknowledged, and is collected; looked at in this order it may be seen in
   both, and never in neither.
2. The log and the lake are read as they were then. What the log has collected while it was read is looked up last.
3. Three passes at most over what there is: offsets and contents, counters, and whatever is in doubt. Of topics that
   windows are published to there are two more, against the table `rollups`, which is looked up after them. Windows
   that it has and they lack are looked for once more: of the table as it was before, in topics as they are then.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stafeta.errors import DataLoss, InvalidRequest, StafetaError, StoreDamaged, Unsound
from stafeta.names import FLIGHT_PREFIX, check_filter, filters_of, matcher
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.jobs.archiving.retention import holder
from stafeta.pipeline.jobs.auditing import (
    checkpoints,
    counters,
    cursors,
    offset_bits,
    offsets,
    stored,
    windows,
)
from stafeta.pipeline.jobs.auditing.findings import Finding, Report, Tally
from stafeta.pipeline.jobs.auditing.offset_bits import Bounds
from stafeta.pipeline.lake import files
from stafeta.pipeline.lake.archived import NOTHING, Known, known_in, known_in_files
from stafeta.pipeline.lake.tables import TABLES
from stafeta.pipeline.local_frame import local_frame
from stafeta.pipeline.view import matching
from stafeta.ranges import first_missing

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.clients.flight.connection import Connection, SubscriptionInfo, TopicInfo
    from stafeta.config import Config
    from stafeta.pipeline.lake import Lake

MOST: Final = 200_000  # blocks of 64 offsets that can be in doubt
CLOSELY: Final = 10_000  # of them that are looked at row by row
PRODUCERS: Final = 10_000


def start(context: Context) -> "Sequence[StreamingQuery]":
    arguments = context.arguments
    filters = arguments.get("topic") or context.config.pipeline.subscribe
    report = audit(context.spark, context.config, context.lake, filters)
    pipeline, place = context.config.pipeline, context.checkpoint.rpartition("/")[0]
    older = checkpoints.older(pipeline.broker, filters_of(pipeline.subscribe), place)
    report = report._replace(findings=(*report.findings, *older))
    lines = report.json() if arguments.get("json") else report.table()
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    if report.findings:
        raise Unsound(f"Lake and log are not as they should be: {report.summary}.")
    return ()


def audit(spark: "SparkSession", config: "Config", lake: "Lake", filters: str) -> Report:
    """Looks at the topics that match the filters, which have commas between."""
    from stafeta import connect

    wanted = Wanted(filters)
    rollups = lake.table("rollups") if lake.has("rollups") else None
    with connect(config.pipeline.broker) as broker:
        subscriptions_read = _Subscriptions.read(broker, wanted)
        topics = wanted.topics(broker)
        held = _lake(spark, lake, wanted)
        bounds = _bounds(topics, held.known)
        tally, count, found = Tally(), 0, [*held.findings, *_other_log(broker, lake)]
        if bounds or lake.has("messages"):
            log = _log(spark, config.pipeline.broker, wanted, topics)
            count = _offsets(spark, broker, lake, wanted, held, log, bounds, tally)
            rest = _rest(spark, config.pipeline.broker, wanted, topics, bounds)
            _counters(held.messages, rest, tally)
        log_windows = _LogWindows(spark, broker, config.pipeline.broker, topics, held, bounds)
        found += _windows(spark, lake, wanted, log_windows, rollups, tally)
        archive = FLIGHT_PREFIX + holder(lake) if lake.has("messages") else ""
        found += cursors.standing(subscriptions_read.subscriptions, held.known.done, archive, wanted.topic)
        found += subscriptions_read.uncovered(broker, wanted)
    return Report(len(bounds), count, (*tally.findings(), *found))


def _bounds(topics: "Mapping[str, TopicInfo]", known: Known) -> dict[str, Bounds]:
    return {
        name: Bounds(
            name,
            tuple(known.archived.get(name, ())),
            *((topics[name].first, topics[name].next) if name in topics else (1, 1)),
            tuple(known.absent.get(name, ())),
            tuple(topics[name].skipped) if name in topics else (),
        )
        for name in sorted({*topics, *known.archived})
    }


def _other_log(broker: "Connection", lake: "Lake") -> list[Finding]:
    """Whether the log is the one that was archived, also where lake and log have no message in common."""
    mark = lake.mark if lake.has("messages") else ""
    try:
        broker.check([mark] if mark else [])
    except (DataLoss, InvalidRequest):  # the latter of a mark that was damaged
        return [Finding("agreement", "", offsets.UNRELATED, (), 1)]
    return []


class Wanted:
    """Which topics are looked at."""

    def __init__(self, filters: str) -> None:
        self.filters = filters_of(filters)
        for one in self.filters:
            check_filter(one)

    def topic(self, name: str) -> bool:
        return any(matcher(one)(name) for one in self.filters)

    def topics(self, broker: "Connection") -> "dict[str, TopicInfo]":
        return {info.topic: info for one in self.filters for info in broker.topics(one)}


class _Subscriptions(NamedTuple):
    before: frozenset[str]
    subscriptions: "tuple[SubscriptionInfo, ...]"
    after: frozenset[str]

    @classmethod
    def read(cls, broker: "Connection", wanted: Wanted) -> "_Subscriptions":
        before = frozenset(wanted.topics(broker))
        return cls(before, tuple(broker.subscriptions()), frozenset(wanted.topics(broker)))

    def uncovered(self, broker: "Connection", wanted: Wanted) -> list[Finding]:
        found = cursors.covering(*self, wanted.topic)
        if found:
            again = cursors.covering(*_Subscriptions.read(broker, wanted), wanted.topic)
            found = [one for one in found if one in again]
        return found


class _Held(NamedTuple):
    """What the lake says that it holds, and what it does, as of one instant; and what is wrong with its files."""

    known: Known
    messages: "DataFrame"
    urls: Sequence[str]
    """Of the files that the messages are in."""
    findings: Sequence[Finding]


def _lake(spark: "SparkSession", lake: "Lake", wanted: Wanted) -> _Held:
    if not lake.has("messages"):
        return _Held(NOTHING, local_frame(spark, [], TABLES["messages"].columns), (), ())
    table = lake.table("messages")
    held = stored.examined(table)
    known = _known(table, held.sound)
    topics = known.done
    known = known.of([topic for topic in topics if wanted.topic(topic)])
    messages = files.read(spark, TABLES["messages"], held.sound)
    if not (topics and all(map(wanted.topic, topics))):  # which takes as long as reading the rows
        messages = messages.where(matching(wanted.filters))
    return _Held(known, messages, held.sound, [*stored.findings(table, held.wrong)])


def _known(table: "Table", urls: Sequence[str]) -> Known:
    """What the lake says to have: by its lists, or by files that can be read, where neither all lists nor all files
    can."""
    try:
        return known_in(table)
    except (StoreDamaged, Unsound):
        return known_in_files(urls)


def _log(
    spark: "SparkSession",
    broker: str,
    wanted: Wanted,
    topics: "dict[str, TopicInfo]",
    starts: Mapping[str, int] | None = None,
    columns: Sequence[str] = TABLES["messages"].names,
) -> "DataFrame":
    """What the log holds of these topics, from where they begin, or these starts, up to where they end. What is
    collected meanwhile is passed over."""
    if not topics:
        return local_frame(spark, [], TABLES["messages"].columns)
    options = {
        "broker": broker,
        "subscribe": ",".join(wanted.filters),
        "columns": ",".join(columns),
        "startingOffsets": json.dumps(starts or {name: one.first for name, one in topics.items()}),
        "endingOffsets": json.dumps({name: one.next for name, one in topics.items()}),
        "failOnDataLoss": "false",
    }
    return spark.read.format("stafeta").options(**options).load()


def _offsets(
    spark: "SparkSession",
    broker: "Connection",
    lake: "Lake",
    wanted: Wanted,
    held: _Held,
    log: "DataFrame",
    bounds: dict[str, Bounds],
    tally: Tally,
) -> int:
    """Adds what is wrong with offsets and contents; returns how many messages there are."""
    frame = offset_bits.bounds_frame(spark, bounds.values())
    found = offset_bits.collected(offset_bits.blocks(held.messages, log, frame), MOST + len(bounds))
    if len(found) == MOST + len(bounds):
        raise StafetaError(
            f"More than {MOST:,} times 64 offsets are in doubt: look at some of the topics at a time (--topic)."
        )
    doubtful = [
        (one.topic, one.block) for one in found if one.block is not None and (one.twice or one.unlike)
    ]
    if doubtful:
        rows = offset_bits.doubtful_rows(held.messages, log, frame, doubtful[:CLOSELY], MOST)
        offsets.judge_rows(tally, rows)
    topics = wanted.topics(broker)
    now = offsets.Now(
        {name: one.first for name, one in topics.items()},
        {name: one.next for name, one in topics.items()},
        _known(lake.table("messages"), held.urls).done if lake.has("messages") else {},
    )
    offsets.judge(tally, found, bounds, now)
    offsets.judge_ends(tally, bounds.values(), now)
    return sum(one.messages for one in found)


def _rest(
    spark: "SparkSession",
    broker: str,
    wanted: Wanted,
    topics: "dict[str, TopicInfo]",
    bounds: dict[str, Bounds],
    columns: Sequence[str] = counters.COLUMNS,
) -> "DataFrame | None":
    """What the log holds and the lake does not say to have, in the columns that counters need, or others; None where
    that is nothing. What the lake has is not read again."""
    starts = {
        name: min(first_missing(bounds[name].said, one.first), one.next) for name, one in topics.items()
    }
    if all(starts[name] == one.next for name, one in topics.items()):
        return None
    log = _log(spark, broker, wanted, topics, starts, columns)
    return offset_bits.unarchived(log, offset_bits.bounds_frame(spark, bounds.values()))


def _counters(archived: "DataFrame", rest: "DataFrame | None", tally: Tally) -> None:
    messages: Any = archived.select(*counters.COLUMNS)
    if rest is not None:
        messages = messages.union(rest.select(*counters.COLUMNS))
    producers = counters.producers_in_doubt(messages, PRODUCERS)
    if producers:
        counters.judge(tally, counters.repeated(messages, producers))


class _LogWindows(NamedTuple):
    """What is known of the topics that windows are published to."""

    spark: "SparkSession"
    broker: "Connection"
    address: str
    topics: "dict[str, TopicInfo]"
    held: _Held
    bounds: dict[str, Bounds]

    def messages(self) -> "DataFrame | None":
        """What lake and log hold; None where there are no such topics."""
        if not any(name.startswith(windows.TOPICS) for name in self.bounds):
            return None
        mine = {name: one for name, one in self.topics.items() if name.startswith(windows.TOPICS)}
        messages = self.held.messages.select(*windows.COLUMNS)
        rest = _rest(self.spark, self.address, _WINDOWS, mine, self.bounds, windows.COLUMNS)
        return messages if rest is None else messages.union(rest.select(*windows.COLUMNS))

    def again(self, lake: "Lake") -> "DataFrame":
        """What lake and log hold now; of a lake that is damaged, what it held."""
        log = _log(self.spark, self.address, _WINDOWS, _WINDOWS.topics(self.broker), columns=windows.COLUMNS)
        is_sound = not self.held.findings and lake.has("messages")
        archived = lake.frame(self.spark, "messages") if is_sound else self.held.messages
        return log.select(*windows.COLUMNS).union(archived.select(*windows.COLUMNS))

    def whole(self) -> list[str]:
        """Those of which lake and log have every message from the first on."""
        return [
            name
            for name, one in self.bounds.items()
            if name.startswith(windows.TOPICS)
            and not one.nowhere
            and first_missing([*one.said, (one.first, one.next)]) >= one.next
        ]


_WINDOWS: Final = Wanted(f"{windows.TOPICS}#")


def _windows(
    spark: "SparkSession",
    lake: "Lake",
    wanted: Wanted,
    log: _LogWindows,
    before: "Table | None",
    tally: Tally,
) -> list[Finding]:
    """Adds what is wrong with windows in topics; returns what is with the tables that jobs write to. `before` is the
    table `rollups` as it was before the topics were looked up."""
    found: list[Finding] = []
    if lake.has("dead"):
        dead = lake.table("dead")
        found += stored.findings(dead, stored.examined(dead).wrong)
    if not lake.has("rollups"):
        return found
    table = lake.table("rollups")
    there = stored.examined(table)
    rows = files.read(spark, TABLES["rollups"], there.sound)
    found += stored.findings(table, there.wrong)
    found += windows.repeated(rows.where(matching(wanted.filters)))
    messages, producers = log.messages(), windows.producers(table)
    if messages is None:
        return found
    windows.compare(tally, messages, rows, producers)
    missing = windows.unpublished(rows, messages, producers, log.whole())
    if missing and before is not None:  # a rollup may be at it, and the archive
        rows = files.read(spark, TABLES["rollups"], stored.examined(before).sound)
        found += windows.unpublished(rows, log.again(lake), producers, [one.topic for one in missing])
    return found


JOB = Job("audit", BUILT_IN["audit"].about, start, batch=True)
