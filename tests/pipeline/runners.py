"""Runners in the test's own process, on the session that all tests share."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stafeta.config import Config, load
from stafeta.config.sources import from_assignment
from stafeta.pipeline.job import Job
from stafeta.pipeline.runner.reports import Report
from stafeta.pipeline.runner.runner import Runner
from stafeta.pipeline.runner.supervisor import RestartBackoff
from tests.brokers import BrokerProcess
from tests.pipeline.queries import address
from tests.waiting import PATIENCE, wait_until


def configured(broker: BrokerProcess, folder: Path, *settings: str) -> Config:
    """A pipeline on this broker, with its lake in the folder."""
    texts = [
        f"pipeline.broker={address(broker)}",
        f"lake.warehouse={folder}",
        "pipeline.trigger=100ms",
        "archive.every=0s",
        *settings,
    ]
    return load(flags=[from_assignment(text, "--set") for text in texts], environment={})


class Run:
    """A runner on a thread, and all that it has told."""

    def __init__(self, spark: SparkSession, config: Config, jobs: Sequence[Job], **options: Any) -> None:
        self.told: list[Report] = []
        self.runner = Runner(
            spark,
            config,
            jobs,
            tell=self.told.append,
            backoff=lambda: RestartBackoff(0.1, 0.4),
            **options,
        )
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.runner.stop()
        self.end()

    def end(self) -> None:
        """Waits until it has ended by itself."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the runner does not end"
        if self._error is not None:
            raise self._error

    def states(self, job: str) -> list[str]:
        """The states that a job went through."""
        found: list[Report] = []
        for report in self.told:
            if report.job == job and (
                not found or (found[-1].state, found[-1].since) != (report.state, report.since)
            ):
                found.append(report)
        return [report.state for report in found]

    def last(self, job: str) -> Report:
        return next(report for report in reversed(self.told) if report.job == job)

    def wait_for(self, job: str, state: str, count: int = 1) -> Report:
        """Waits until a job has come to a state, so many times."""
        wait_until(lambda: self.states(job).count(state) >= count, PATIENCE)
        return next(report for report in reversed(self.told) if report.job == job and report.state == state)

    def _run(self) -> None:
        try:
            self.runner.run()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error


@contextmanager
def running(spark: SparkSession, config: Config, *jobs: Job, **options: Any) -> Iterator[Run]:
    """Jobs that run while what is within is done, and are stopped then."""
    run = Run(spark, config, jobs, **options)
    run.start()
    try:
        yield run
    finally:
        run.stop()


def done_once(spark: SparkSession, config: Config, *jobs: Job, **options: Any) -> Run:
    """Jobs that did what there was to do."""
    run = Run(spark, config, jobs, once=True, **options)
    run.start()
    run.end()
    return run
