"""What is seen of jobs that run, on standard error: a line at each change of state; and on a terminal, below those, a
line for each job that is kept up to date. Batch jobs show themselves."""

import shutil
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from stafeta.pipeline.job import Job
from stafeta.pipeline.runner.reports import Report

_INTERVAL: Final = 0.5  # seconds between two drawings


class Screen:
    def __init__(self, jobs: Sequence[Job]) -> None:
        self._live = sys.stderr.isatty() and any(not job.batch for job in jobs)
        self._quiet = {job.name for job in jobs if job.batch}
        self._width = max((len(job.name) for job in jobs), default=0)
        self._lock = threading.Lock()
        self._reports: dict[str, Report] = {}
        self._states: dict[str, tuple[str, str]] = {}  # with when they began
        self._drawn = 0.0
        self._height = 0  # of what is kept up to date

    def tell(self, report: Report) -> None:
        """Takes a report; from any thread."""
        with self._lock:
            self._reports[report.job] = report
            if self._states.get(report.job) != (report.state, report.since):
                self._states[report.job] = (report.state, report.since)
                line = changed(report)
                if line and (report.job not in self._quiet or report.state == "failed"):
                    self._print(line)

    def say(self, sentence: str) -> None:
        with self._lock:
            self._print(sentence)

    def draw(self) -> None:
        """Brings the lines of the jobs up to date; call it now and then."""
        now = time.monotonic()
        with self._lock:
            if self._live and now >= self._drawn + _INTERVAL:
                self._drawn = now
                columns = shutil.get_terminal_size().columns - 1
                lines = [
                    progress(one, self._width)[:columns]
                    for one in self._reports.values()
                    if one.job not in self._quiet
                ]
                self._erase()
                sys.stderr.write("".join(f"{line}\n" for line in lines))
                sys.stderr.flush()
                self._height = len(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drawn = 0.0
        self.draw()

    def _print(self, line: str) -> None:
        self._erase()
        print(line, file=sys.stderr, flush=True)

    def _erase(self) -> None:
        if self._height:
            sys.stderr.write(f"\x1b[{self._height}F\x1b[J")  # up so many lines, and away with what is below
            self._height = 0


def changed(report: Report) -> str:
    """A change of state, in a line; empty where it is nothing to tell."""
    done = f"{report.rows:,} rows in {report.batch + 1:,} micro-batches" if report.batch >= 0 else ""
    match report.state:
        case "starting":
            return ""
        case "running":
            return (
                f"{report.job}: running{f', started again ({report.restarts})' if report.restarts else ''}."
            )
        case "waiting":
            return f"{report.job}: failed, and starts again in {report.figures.get('wait', 0):g} s: {report.error}"
        case "failed":
            return f"{report.job}: failed: {report.error}"
        case state:
            return f"{report.job}: {state}{f', {done}' if done else ''}."


def progress(report: Report, width: int) -> str:
    """How a job is, in a line."""
    line = f"{report.job:<{width}}  {report.state:<8}"
    if report.batch >= 0:
        line += f"  batch {report.batch:,}  {report.rows:,} rows  {report.rows_per_second:,.0f}/s  lag {report.lag:,}"
    for name, value in report.figures.items():
        if isinstance(value, int | float) and name != "wait":
            line += f"  {name} {value:,}"
    return f"{line}  {report.error}" if report.error else line
