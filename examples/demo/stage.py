"""The processes of the demo, and the folder that they work in. Neither is left when it is over.

1. Whatever they start in turn (Spark's JVM, its Python workers) inherits a mark in its environment, and is found by it.
2. Ctrl-C reaches the demo alone, which then ends the others.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from stafeta.testing import Broker, BrokerFailed

PATIENCE: Final = 30.0
_MARK: Final = "DEMO_OF_STAFETA"
# Small, quick to start, and with all that it writes in the folder.
_SPARK: Final = """\
spark.driver.memory 768m
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}
spark.local.dir {folder}
spark.sql.shuffle.partitions 2
spark.sql.warehouse.dir {folder}/warehouse
"""


class Unexpected(Exception):
    """Something went another way than it should."""


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        # Signals interrupt the main thread only: here a process is never started without its mark being known.
        self._starter = ThreadPoolExecutor(max_workers=1)
        (folder / "spark").mkdir()
        (folder / "spark-defaults.conf").write_text(_SPARK.format(folder=folder / "spark"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
        self._environment = kept | {
            _MARK: self._mark,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(folder),
            "TMPDIR": str(folder / "spark"),
        }

    def broker(self, *doors: str) -> Broker:
        """Starts a broker with these doors, its log in the folder."""
        broker = Broker(self.folder / "log", doors=doors, environment=self._environment)
        try:
            return self._starter.submit(broker.start).result()
        except BrokerFailed as error:
            raise Unexpected(str(error)) from None

    def start(self, *words: str, log: str) -> "Program":
        """Starts `stafeta` in the background."""
        return self._starter.submit(self._start, words, self.folder / log).result()

    def close(self) -> None:
        """Ends everything that was started here, however deep. Signals have to be shut out before."""
        self._starter.shutdown()
        deadline = time.monotonic() + PATIENCE
        while (left := self._members()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.2)

    def _start(self, words: tuple[str, ...], log: Path) -> "Program":
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "stafeta", *words],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return Program(words, process, log)

    def _members(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # it has ended, or is somebody else's
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found


class Program:
    """`stafeta` with some words, which runs."""

    def __init__(self, words: tuple[str, ...], process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.words = words
        self._process = process
        self._log = log

    @property
    def output(self) -> str:
        """What it has printed, on both its outputs."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def end(self, patience: float = PATIENCE) -> str:
        """Waits until it has ended, and returns what it has printed; it has to be content."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Unexpected(f"'{self}' takes longer than {patience:g} s.\n{self.output}") from None
        if code:
            raise Unexpected(f"'{self}' ends with exit code {code}.\n{self.output}")
        return self.output

    def stop(self) -> None:
        """Asks it to stop, and waits until it has."""
        self._process.send_signal(signal.SIGTERM)
        self.end()

    def __str__(self) -> str:
        return " ".join(("stafeta", *self.words[:4]))


def wait_for(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    waiting = threading.Event()
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise Unexpected(f"waited {patience:g} s for {what}.")
        waiting.wait(0.05)
