"""The job replay: messages of the lake, to topics again.

1. What is replayed, and in which portions, is fixed when a replay begins, and written down under its name. Started
   again with the name, it goes on where it was.
2. Each portion, or each chunk of it where the clock decides, is one transaction of the broker's, numbered in order: it
   is seen whole, and once, however often it is sent.
3. At full speed Spark sends, a large portion at a time. By the clock, the driver sends what Spark has put in order.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from stafeta.errors import ConfigError
from stafeta.pipeline.connector.sink import PRODUCER
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.jobs import BUILT_IN
from stafeta.pipeline.jobs.auditing.findings import counted
from stafeta.pipeline.jobs.replaying.pace import Clock, chunks
from stafeta.pipeline.jobs.replaying.replay_plan import (
    Plan,
    PlanStore,
    chosen,
    cut,
    measured,
    outgoing,
    portion,
    ranges_of,
    sampled,
)
from stafeta.pipeline.jobs.replaying.request import FULL, Request, name_of
from stafeta.pipeline.lake.lake import archived_in
from stafeta.progress import Progress
from stafeta.times import time_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from stafeta.clients.flight.connection import Connection

PACED: Final = 100_000  # messages of a portion that is sent by the clock,
MEMORY: Final = 32 << 20  # … or as many as have so many bytes: two portions are in the driver's memory
CHUNKS: Final = 1 << 20  # numbers that the chunks of a portion have
_LINE: Final = 10.0  # seconds between lines on how far it is, where there is no terminal


def start(context: Context) -> "Sequence[StreamingQuery]":
    from stafeta import connect

    request = Request.of(context.arguments)
    name = name_of(context.arguments.get("name"))
    plan = planned(context, name, request)
    if plan is None:
        _say("No message of the lake is asked for.")
        return ()
    application = f"replay/{name}{plan.producer}"
    with connect(context.config.pipeline.broker) as broker:
        last = broker.committed(PRODUCER + application)
        done = 0 if last is None else last + 1
        replay = Replay(context, plan, name, broker, application)
        if done == 0:
            _say(
                f"Replay {name}: {counted(plan.messages, 'message')} of {counted(len(plan.ranges), 'topic')}."
            )
        else:
            _say(f"Replay {name} goes on.")
        with replay.progress:
            replay.run(done)
    if replay.stopped:
        _say(f"Replay {name} was stopped; --name {name} goes on with it.")
    else:
        _say(f"Replay {name} is done: {counted(plan.messages, 'message')}.")
    return ()


def planned(context: Context, name: str, request: Request) -> Plan | None:
    """The plan of the replay of this name, which is made where there is none; None where it would be empty."""
    lake = context.lake
    if not lake.has("messages"):
        raise ConfigError(f"There is nothing in the lake {lake.warehouse}: run the job archive first.")
    plans = PlanStore(lake.warehouse)
    lake.give_id()
    plan = plans.read(name)
    if plan is not None:
        if plan.lake not in ("", lake.id):
            raise ConfigError(f"The replay {name!r} is one of another lake. Give this one another --name.")
        if plan.request != request:
            raise ConfigError(
                f"The replay {name!r} was begun with other options: {_difference(plan.request, request)}. Give the "
                "same, or another --name."
            )
        return plan
    table = lake.table("messages")
    ranges = ranges_of(archived_in(table), request)
    messages = chosen(lake.frame_of(context.spark, table, "messages"), ranges, request)
    count, begin, bytes_ = measured(messages) if ranges else (0, 0, 0)
    if not count:
        return None
    size = context.config.pipeline.batch
    if request.rate != FULL:
        size = min(PACED, max(1, MEMORY * count // max(1, bytes_)))
    cuts, sizes = cut(sampled(messages, size) if count > size else [], count, size)
    plans.write(name, Plan(request, ranges, cuts, sizes, begin, lake.id))
    return plans.read(name)  # where another program has begun it too, the last plan counts


class Replay:
    """A replay that runs."""

    def __init__(
        self, context: Context, plan: Plan, name: str, broker: "Connection", application: str
    ) -> None:
        self.stopped = False
        self.progress = Progress(lambda sent: min(1.0, sent / plan.messages))
        self._context = context
        self._plan = plan
        self._name = name
        self._broker = broker
        self._application = application
        self._told = time.monotonic()

    def run(self, done: int) -> None:
        """Sends everything from the transaction `done` on."""
        try:
            if self._plan.request.rate == FULL:
                self._send_at_once(-(-done // CHUNKS))
            else:
                self._send_by_the_clock(done // CHUNKS, done)
        except Exception:
            if not self._stopping():  # which interrupts Spark
                raise

    def _send_at_once(self, first: int) -> None:
        self._advance(sum(self._plan.sizes[:first]))
        for number in range(first, self._plan.portions):
            if self._stopping():
                return
            self._send_all(number)

    def _send_all(self, number: int) -> None:
        plan = self._plan
        rows = outgoing(self._messages(number), plan.request)
        (
            rows.write.format("stafeta")
            .mode("append")
            .option("broker", self._context.config.pipeline.broker)
            .option("txnAppId", self._application)
            .option("txnVersion", number * CHUNKS)
            .save()
        )
        self._advance(plan.sizes[number])

    def _send_by_the_clock(self, first: int, done: int) -> None:
        self._advance(sum(self._plan.sizes[:first]))
        clock = Clock(self._context.stopping.wait)
        request, sent = self._plan.request, 0
        for number, rows in self._ahead(first):
            parted = rows.drop_columns([] if request.keep_times else ["timestamp"])
            for chunk in chunks(rows.column("timestamp").combine_chunks(), request, self._plan.begin, sent):
                version = number * CHUNKS + chunk.number
                if version >= done:
                    clock.wait_until(chunk.due)
                    if self._stopping():
                        return
                    self._send(version, parted.slice(chunk.start, chunk.stop - chunk.start))
                self._advance(chunk.stop - chunk.start)
            sent += rows.num_rows

    def _send(self, version: int, rows: "pa.Table") -> None:
        transaction = self._broker.transaction(PRODUCER + self._application, version)
        # Of its own: what an attempt that was killed has put aside is dropped by the commit.
        part = uuid4().hex
        count = transaction.write(None, rows, part)
        transaction.commit({part: count})

    def _ahead(self, first: int) -> "Iterator[tuple[int, pa.Table]]":
        """The portions from `first` on, the next of which is read while one is sent."""
        numbers = range(first, self._plan.portions)
        with ThreadPoolExecutor(1, "replay") as reader:
            coming = reader.submit(self._read, first) if numbers else None
            for number in numbers:
                assert coming is not None
                rows = coming.result()
                coming = reader.submit(self._read, number + 1) if number + 1 in numbers else None
                yield number, rows

    def _read(self, number: int) -> "pa.Table":
        request = self._plan.request
        return outgoing(self._messages(number), request, timestamp=True).toArrow()

    def _messages(self, number: int) -> "DataFrame":
        lake, plan = self._context.lake, self._plan
        low, high = plan.times(number)
        files = lake.frame(self._context.spark, "messages", row_filter=_times(low, high))
        return portion(chosen(files, plan.ranges, plan.request), *plan.edges(number))

    def _stopping(self) -> bool:
        self.stopped = self._context.stopping.is_set()
        return self.stopped

    def _advance(self, count: int) -> None:
        self.progress.advance(count)
        sent, messages = self.progress.sent, self._plan.messages
        self._context.note(sent=sent, messages=messages)
        now = time.monotonic()
        if not self.progress.shown and now > self._told + _LINE:
            self._told = now
            _say(f"Replay {self._name}: about {sent:,} of {messages:,} messages.")


def _times(low: int | None, high: int | None) -> str | None:
    """For the catalog: which files can have messages between two times, both included."""

    def text(micros: int) -> str:
        return time_of(micros).isoformat(timespec="microseconds")

    bounds = [(">=", low), ("<=", high)]
    return (
        " and ".join(f"timestamp {sign} '{text(time)}'" for sign, time in bounds if time is not None) or None
    )


def _difference(before: Request, now: Request) -> str:
    old, new = before.plain(), now.plain()
    return ", ".join(f"{name} was {old[name]!r}" for name in old if old[name] != new[name])


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


JOB = Job("replay", BUILT_IN["replay"].about, start, batch=True)
