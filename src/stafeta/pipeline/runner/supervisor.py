"""One job, on a thread of its own, from its start to its end.

1. The queries of a job live and fail together.
2. A job that fails is started again, after a while that grows, unless its failure is one that lasts. With `once` it is
   started again a few times only, and a batch job never.
3. Jobs begin one after the other: each starts Python processes, and Spark gives these 10 s to answer.
4. A job is stopped between two micro-batches if that takes no longer than `PATIENCE`; otherwise in the middle of one,
   which is then done again.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from stafeta.backoff import Backoff
from stafeta.errors import DataLoss
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.runner.failures import Failure, failure_of, naming_the_disk
from stafeta.pipeline.runner.progress_counter import ProgressCounter
from stafeta.pipeline.runner.queries import (
    activate,
    batch_of,
    begins,
    has_ended,
    interrupt,
    is_done,
    mark,
    share_fairly,
)
from stafeta.pipeline.runner.reports import Report, moment

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("stafeta.pipeline")

PATIENCE: Final = 10.0
_POLL_INTERVAL: Final = 0.2  # seconds between looks at the queries
_REPORT_INTERVAL: Final = 1.0  # … between reports of micro-batches
_GONE: Final = (
    "Spark has ended: it was killed, or had no memory left. What is done is kept: run the jobs again."
)
_HEARTBEAT: Final = 3.0  # … between reports of nothing
_CALM: Final = 60.0  # seconds without a failure, after which the next one is a first one
_TRIES: Final = 3  # restarts with `once`
_BEGINNING: Final = 20.0  # seconds that others wait for a job to begin


class _Stopped(Exception):
    """It is to stop before it has begun."""


class RestartBackoff(Backoff):
    """A second before the first restart, then twice as long each time, up to a minute; from the beginning again after a
    minute in which it went well."""

    def __init__(self, first: float = 1.0, longest: float = 60.0) -> None:
        super().__init__(first, longest)

    def after(self, ran: float) -> float:
        """The wait after a failure of a job that had run for so many seconds."""
        if ran >= _CALM:
            self.reset()
        return self.longer()


class JobSupervisor:
    """Runs a job. `tell` gets each report; it must be quick, and may be called from any thread. Jobs that share a
    `turn` begin one after the other."""

    def __init__(
        self,
        job: Job,
        context: Context,
        runner: str,
        tell: Callable[[Report], None],
        backoff: RestartBackoff | None = None,
        turn: "threading.Lock | None" = None,
    ) -> None:
        self.job = job
        self.failure: Failure | None = None
        self._context = context
        self._tell = tell
        self._backoff = backoff or RestartBackoff()
        self._turn = turn or threading.Lock()
        self._report = Report(job.name, since=moment(), runner=runner)
        self._reported = 0.0
        self._tally = ProgressCounter()
        self._stopping = context.stopping
        self._tag = f"job-{job.name}"
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)

    @property
    def report(self) -> Report:
        return self._report

    @property
    def ended(self) -> bool:
        return self._report.ended

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks it to stop; returns at once."""
        self._stopping.set()
        if self.job.batch:  # in the middle of Spark's work: on a thread, since this may be a signal's handler
            threading.Thread(target=self._interrupt, daemon=True).start()

    def note(self, **figures: object) -> None:
        """Figures for the job's reports."""
        self._context.note(**figures)

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def _interrupt(self) -> None:
        """Again and again: one that comes while the job asks nothing of Spark ends nothing, and what it asks for next
        would be done to its end."""
        while self._thread.is_alive():
            with suppress(Exception):  # Spark is ending, or does not answer this time
                interrupt(self._context.spark, self._tag)
            self.join(_POLL_INTERVAL)

    # --- on the thread

    def _run(self) -> None:
        try:
            activate(self._context.spark)
            share_fairly(self._context.spark)
            if self.job.batch:
                mark(self._context.spark, self._tag)
            while self._live():
                self._report = replace(self._report, restarts=self._report.restarts + 1)
        except Exception as error:
            log.debug("The job %s", self.job.name, exc_info=True)
            self._fail(failure_of(error))

    def _live(self) -> bool:
        """One life of the job; whether there is to be another."""
        self._change("starting")
        began = time.monotonic()
        queries: Sequence[StreamingQuery] = ()
        try:
            queries = self._begun()
            if queries:
                self._follow(queries)
            stopped = self._stopping.is_set() and (self.job.batch or not all(map(is_done, queries)))
            self._leave(queries)
            self._change("stopped" if stopped else "finished")
            return False
        except Exception as error:
            self._clear(queries)
            if self._stopping.is_set():
                self._change("stopped")
                return False
            log.debug("The job %s", self.job.name, exc_info=True)
            failure = naming_the_disk(failure_of(error), self._places())
            if queries and self.job.replans and isinstance(failure.error, DataLoss):
                failure = failure._replace(lasting=False)  # the next start says so, if it is
            return self._again(failure, time.monotonic() - began)

    def _places(self) -> dict[str, str]:
        """Where the job writes to, as far as that is known."""
        context = self._context
        places = {"lake.warehouse": context.config.lake.warehouse, "pipeline.checkpoints": context.checkpoint}
        with suppress(Exception):  # Spark is ending
            places["spark.local.dir"] = context.spark.conf.get("spark.local.dir", gettempdir()) or ""
        return places

    def _begun(self) -> "Sequence[StreamingQuery]":
        """The queries of the job, which have started to work, or failed."""
        if self.job.batch:
            return self.job.start(self._context)
        while not self._turn.acquire(timeout=_POLL_INTERVAL):
            if self._stopping.is_set():
                raise _Stopped
        try:
            queries = self.job.start(self._context)
            if queries:
                self._change("running")
            deadline = time.monotonic() + _BEGINNING
            while time.monotonic() < deadline and any(map(begins, queries)):
                if self._stopping.wait(_POLL_INTERVAL):
                    break
            return queries
        finally:
            self._turn.release()

    def _follow(self, queries: "Sequence[StreamingQuery]") -> None:
        """Returns when it is to stop, or all queries have ended; raises what one of them failed of."""
        active = True
        while active and not self._stopping.wait(_POLL_INTERVAL):
            active = False
            for query in queries:
                if query.isActive:
                    active = True
                elif (error := query.exception()) is not None:
                    raise error
            self._look(queries)
        self._look(queries, at_once=True)

    def _look(self, queries: "Sequence[StreamingQuery]", at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._reported + _REPORT_INTERVAL and not at_once:
            return
        if self._counted(queries) or now >= self._reported + _HEARTBEAT:
            self._say(**self._done())

    def _counted(self, queries: "Sequence[StreamingQuery]") -> bool:
        """Whether there is something new. A report that fails does not make the job fail."""
        try:
            return sum(map(self._tally.look, queries)) > 0
        except Exception:
            log.debug("The progress of %s cannot be reported", self.job.name, exc_info=True)
            return False

    def _leave(self, queries: "Sequence[StreamingQuery]") -> None:
        """Lets the micro-batches that run come to their end, and stops."""
        before = {query.id: batch_of(query) for query in queries}
        deadline = time.monotonic() + PATIENCE
        for query in queries:
            while (
                query.isActive
                and query.status["isTriggerActive"]
                and batch_of(query) == before[query.id]
                and time.monotonic() < deadline
            ):
                time.sleep(_POLL_INTERVAL / 2)
        for query in queries:
            try:
                query.stop()
            except Exception:  # it takes too long, and ends with Spark, or when it next comes to itself
                log.debug("The query %s does not stop", query.name, exc_info=True)
        self._counted(queries)
        self._report = replace(self._report, **self._done())

    def _clear(self, queries: "Sequence[StreamingQuery]") -> None:
        """Stops what a job that failed has left: also a query that it has not reported."""
        self._counted(queries)
        self._report = replace(self._report, **self._done())
        with suppress(Exception):
            for query in self._context.spark.streams.active:
                if (query.name or "").partition("/")[0] == self.job.name:
                    query.stop()

    def _again(self, failure: Failure, ran: float) -> bool:
        if has_ended(self._context.spark):
            failure = Failure(_GONE, lasting=True)
        tries = _TRIES if self._context.once else None
        if failure.lasting or self.job.batch or (tries is not None and self._report.restarts >= tries):
            self._fail(failure)
            return False
        wait = self._backoff.after(ran)
        self._change("waiting", error=failure.sentence, wait=wait)
        if self._stopping.wait(wait):
            self._change("stopped")
            return False
        return True

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self._change("failed", error=failure.sentence)

    # --- reports

    def _done(self) -> dict[str, Any]:
        counter = self._tally
        return {
            "batch": counter.batch,
            "rows": counter.rows,
            "rows_per_second": round(counter.rows_per_second, 1),
            "lag": counter.lag,
        }

    def _change(self, state: str, error: str = "", wait: float | None = None) -> None:
        if wait is not None:
            self._context.figures["wait"] = wait
        else:
            self._context.figures.pop("wait", None)
        # What it failed of stays to be seen while it tries again.
        error = self._report.error if state == "starting" and not error else error
        self._report = replace(self._report, state=state, since=moment(), error=error)
        self._say()

    def _say(self, **changes: Any) -> None:
        self._reported = time.monotonic()
        figures = {**self._asked(), **self._context.figures}
        for name, count in self._tally.observed.items():
            if count:
                figures.setdefault(name, count)
        self._report = replace(self._report, figures=figures, **changes)
        self._tell(self._report)

    def _asked(self) -> Mapping[str, Any]:
        """Figures that the job tells when it is asked; it does not fail by them."""
        if self.job.figures is None:
            return {}
        try:
            return self.job.figures(self._context)
        except Exception:
            log.debug("The job %s does not tell its figures", self.job.name, exc_info=True)
            return {}
