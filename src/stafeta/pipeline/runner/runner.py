"""Several jobs in one Spark session.

1. Each has a thread of its own: one that fails does not disturb the others.
2. A runner has the checkpoints of its jobs to itself, or does not begin.
3. It ends when all of them have ended; it stops them, or some, when somebody asks for it, here or through the broker.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from stafeta.config import Config
from stafeta.errors import ConfigError
from stafeta.pipeline.job import Context, Job
from stafeta.pipeline.runner.checkpoint_locks import Lock, checkpoints, local_folder
from stafeta.pipeline.runner.reports import Report
from stafeta.pipeline.runner.status_reporter import StatusReporter
from stafeta.pipeline.runner.supervisor import PATIENCE, JobSupervisor, RestartBackoff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_INTERVAL: Final = 0.1
_LEAVING: Final = PATIENCE + 25.0  # seconds after which a job that does not stop is left to itself


def check(jobs: Sequence[Job]) -> None:
    """Refuses two jobs of one name: each would take the other's checkpoints for its own."""
    names = [job.name for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"Two jobs have the name {twice!r}; give one of them another, or run it once.")


class Locks:
    """The checkpoints of streaming jobs, held together or not at all."""

    def __init__(self, config: Config, jobs: Sequence[Job]) -> None:
        folder = local_folder(checkpoints(config))
        self._locks = (
            [] if folder is None else [Lock(folder, job.name, job.source) for job in jobs if not job.batch]
        )

    def __enter__(self) -> None:
        try:
            for lock in self._locks:
                lock.take()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.free()


class Runner:
    def __init__(
        self,
        spark: "SparkSession",
        config: Config,
        jobs: Sequence[Job],
        *,
        once: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tell: Callable[[Report], None] = lambda report: None,
        backoff: Callable[[], RestartBackoff] = RestartBackoff,
    ) -> None:
        """`arguments` are for the batch jobs; `tell` gets each report as well as the broker does."""
        check(jobs)
        self.id = uuid4().hex[:12]
        self._config = config
        self._jobs = jobs
        self._tell = tell
        self._messenger = StatusReporter(config.pipeline.broker, self.stop)
        self._stopped_at: float | None = None
        place, turn = checkpoints(config), threading.Lock()
        self.supervisors = [
            JobSupervisor(
                job,
                Context(spark, config, job.name, f"{place}/{job.name}", once, arguments or {}),
                self.id,
                self._heard,
                backoff(),
                turn,
            )
            for job in jobs
        ]

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> list[JobSupervisor]:
        """Runs the jobs until all have ended; `meanwhile` is called now and then."""
        with Locks(self._config, self._jobs):
            self._messenger.start()
            try:
                for supervisor in self.supervisors:
                    supervisor.start()
                while any(not supervisor.ended for supervisor in self.supervisors) and not self._too_late():
                    meanwhile()
                    time.sleep(_POLL_INTERVAL)
                for supervisor in self.supervisors:
                    supervisor.join(_POLL_INTERVAL)
            finally:
                self._messenger.close()
        return self.supervisors

    def note(self, **figures: object) -> None:
        """Figures for the reports of all jobs. One that is None is not reported."""
        known = {name: value for name, value in figures.items() if value is not None}
        for supervisor in self.supervisors:
            supervisor.note(**known)

    def stop(self, names: Sequence[str] = ()) -> None:
        """Asks jobs to stop, or all; returns at once. May be repeated, and be called from any thread."""
        asked = [supervisor for supervisor in self.supervisors if not names or supervisor.job.name in names]
        for supervisor in asked:
            supervisor.stop()
        if self._stopped_at is None and len(asked) == len(self.supervisors):
            self._stopped_at = time.monotonic()

    def _too_late(self) -> bool:
        return self._stopped_at is not None and time.monotonic() > self._stopped_at + _LEAVING

    def _heard(self, report: Report) -> None:
        self._messenger.send(report)
        self._tell(report)
