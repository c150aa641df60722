"""Who takes part in a soak, as processes that are killed and started again."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.pipeline.processes import Family, below, command
from tests.pipeline.sessions import ROOT, environment

_TAIL = 40


class Actor:
    """A command with what it writes in a folder. One that is to come to its end by itself has a file that tells it so
    when it is there."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stop_file: Path | None = None,
    ) -> None:
        self.name = name
        self._environment = environment
        self._stop_file = stop_file
        self._command = command
        self._folder = folder
        self._starts = 0
        self._family = Family()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def start(self) -> None:
        self._starts += 1
        with self._file("out").open("wb") as output, self._file("err").open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**self._family.environment(), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # so that it and its JVM can be killed in one instant
            )

    def kill(self) -> None:
        """SIGKILL to it and to all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
        self._family.kill()  # those that have left its group, or have outlived it
        if process is not None:
            process.wait()

    def send(self, number: signal.Signals) -> None:
        """A signal to it alone."""
        os.kill(self.pid, number)

    def finish(self, patience: float) -> None:
        """Lets it come to its end."""
        assert self._process is not None
        if self._stop_file is not None:
            self._stop_file.touch()
        code = self._process.wait(patience)
        self._process = None
        assert code == 0, f"{self.name} has ended with {code}"

    def has_started(self) -> bool:
        """Whether it has written its first line."""
        return self._file("out").stat().st_size > 0

    def check(self) -> None:
        """Nobody may end who was not killed."""
        code = self._process.poll() if self._process is not None else None
        assert code is None, f"{self.name} has ended by itself with {code}"

    def tail(self) -> str:
        """The last lines that it has written on standard error."""
        if not self._starts:
            return ""
        return "\n".join(self._file("err").read_text(errors="replace").splitlines()[-_TAIL:])

    def lines(self) -> Iterator[str]:
        """What it has written, over all starts. A line that was cut off by a kill is left out."""
        return self._lines("out")

    def errors(self) -> Iterator[str]:
        """The same on standard error."""
        return self._lines("err")

    def _lines(self, kind: str) -> Iterator[str]:
        for number in range(1, self._starts + 1):
            text = self._file(kind, number).read_text(errors="replace")
            yield from text[: text.rfind("\n") + 1].splitlines()

    def members(self) -> list[psutil.Process]:
        """It, and all that it has started."""
        return self._family.members()

    def left(self) -> list[list[str]]:
        """The command lines of whatever lives of it."""
        return [command(process) for process in self.members()]

    def _file(self, kind: str, number: int | None = None) -> Path:
        return self._folder / f"{self.name}-{number or self._starts}.{kind}"


def program(name: str, folder: Path, *arguments: str) -> Actor:
    """A program of the tests that runs until a file is there, whose name is its last argument."""
    stop = folder / f"{name}.stop"
    command = [sys.executable, "-m", f"tests.pipeline.{name}", *arguments, str(stop)]
    return Actor(name, folder, command, environment=environment(), stop_file=stop)


def stored(producer: Actor) -> list[dict[str, int]]:
    """How many messages of each topic the broker had confirmed, time after time."""
    return [json.loads(line) for line in producer.lines()]


def python_workers(driver: Actor, port: int | None = None) -> list[psutil.Process]:
    """The processes in which tasks run Python: forked by Spark's daemon, each for one task at a time. With a port, only
    those that speak with the broker there."""
    found = []
    for process in below(driver.pid):
        with suppress(psutil.Error):
            mother = process.parent()
            if mother is None or not _is_daemon(mother) or not _is_daemon(process):
                continue
            if port is None or any(_goes_to(port, one.raddr) for one in process.net_connections("tcp")):
                found.append(process)
    return found


def pools(driver: int) -> int:
    """How many daemons Spark has that make processes for tasks, by the driver's process id."""
    found = 0
    for process in below(driver):
        with suppress(psutil.Error):
            mother = process.parent()
            found += _is_daemon(process) and mother is not None and not _is_daemon(mother)
    return found


def kill_a_worker(driver: Actor, port: int | None, chance: random.Random) -> bool:
    """Whether there was one to kill."""
    workers = sorted(python_workers(driver, port), key=lambda process: process.pid)
    if not workers:
        return False
    try:
        chance.choice(workers).kill()
    except psutil.NoSuchProcess:
        return False
    return True


def lost_tasks(driver: Actor) -> int:
    """How many tasks Spark had to begin anew."""
    return sum(" Lost task " in line for line in driver.errors())


def _is_daemon(process: psutil.Process) -> bool:
    """The daemon or a worker of it, but not of those that plan a query in the driver."""
    return command(process)[-2:] == ["pyspark.daemon", "pyspark.worker"]


def _goes_to(port: int, place: Any) -> bool:
    return bool(place) and place.port == port
