"""`stafeta pipeline run` and `sql`, once it is known what to run."""

import argparse
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stafeta.cli import exits
from stafeta.cli.configured import spark_settings
from stafeta.cli.interrupts import leave_at_once
from stafeta.cli.pipeline_screen import Screen
from stafeta.config import Config
from stafeta.errors import ConfigError
from stafeta.pipeline.job import Job
from stafeta.pipeline.jobs import BUILT_IN, find
from stafeta.pipeline.runner.runner import Locks, Runner, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stafeta.pipeline.runner.supervisor import JobSupervisor


def run(
    config: Config,
    jobs: Callable[[], Sequence[Job]],
    options: argparse.Namespace,
    arguments: Mapping[str, Any],
) -> int:
    """Runs jobs until they have ended; returns the exit code."""
    from stafeta.addresses import read_flight
    from stafeta.pipeline import endpoint
    from stafeta.pipeline.session import end

    settings = spark_settings(options)
    read_flight(config.pipeline.broker)
    found = jobs()
    check(found)
    names = [job.name for job in found]
    with Locks(config, found):  # before Spark is started for nothing
        pass
    if not options.verbose:
        logging.disable()  # what is to be known comes in reports; PySpark would print the rest as JSON
    screen = Screen(found)
    streams = not all(job.batch for job in found)
    spark = endpoint.session_for_questions(
        config,
        own=options.own or streams,
        master=options.master,
        remote=options.remote,
        name=f"stafeta {' '.join(names)}",
        settings=settings,
        verbose=options.verbose,
        starting=lambda: screen.say(f"Starting Spark for {', '.join(names)}."),
    )
    runner = Runner(spark, config, found, once=options.once, arguments=arguments, tell=screen.tell)
    with _signals(runner) as caught:
        try:
            with _endpoint(spark, config, streams and not options.once) as address, screen:
                runner.note(connect=address)
                watches = runner.run(screen.draw)
        finally:
            end(spark)
    return _code(watches, caught)


@contextmanager
def _endpoint(spark: "SparkSession", config: Config, wanted: bool) -> Iterator[str | None]:
    """The address at which this Spark can be asked while jobs run, if it is wanted."""
    from stafeta.pipeline import endpoint

    with endpoint.opened(spark, config) if wanted else nullcontext() as address:
        yield address


def jobs_named(names: Sequence[str]) -> list[Job]:
    """The built-in jobs of these names, and all those in files."""
    found: list[Job] = []
    for name in names:
        if name.endswith(".py") or os.sep in name:
            from stafeta.pipeline.user_jobs import jobs_in

            mine = jobs_in(Path(name))
            for one in mine:
                if one.name in BUILT_IN:
                    raise ConfigError(
                        f"{name}: {one.name!r} is the name of a job of Stafeta's; give yours another."
                    )
            found += mine
        else:
            found.append(find(name))
    return found


@contextmanager
def _signals(runner: Runner) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM stops the jobs, a second one ends everything at once."""
    caught: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            leave_at_once()
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _code(watches: "Sequence[JobSupervisor]", caught: Sequence[int]) -> int:
    failures = [watch.failure for watch in watches if watch.failure is not None]
    for failure in failures:
        return exits.REFUSED if failure.error is None else exits.code_of(failure.error)
    if any(not watch.ended for watch in watches):
        return exits.REFUSED
    cut_short = any(watch.job.batch and watch.report.state == "stopped" for watch in watches)
    return exits.INTERRUPTED if cut_short and caught else exits.OK
