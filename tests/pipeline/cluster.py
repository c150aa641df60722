"""A Spark standalone cluster from the pyspark package: a master and workers, each a process of its own.

1. All listen on loopback, on any free port.
2. A worker has one core: tasks that run at once run on several of them.
3. What they write is below one folder; what they start (executors, Python workers) ends with them.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from stafeta.clients.closing import Closing
from tests.pipeline.processes import Family
from tests.pipeline.sessions import JVM, environment
from tests.waiting import PATIENCE, wait_until

_SPARK = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


class Cluster(Closing):
    """Starts with `with`; the workers come while the driver starts."""

    def __init__(self, folder: Path, workers: int = 2, python: Path = Path(sys.executable)) -> None:
        self.folder = folder
        self.family = Family()
        self.address = ""
        self._workers = workers
        self._python = python
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start("master", "127.0.0.1", "org.apache.spark.deploy.master.Master")
            wait_until(lambda: _MASTER.search(self._log("master")) or self._ended, PATIENCE)
            found = _MASTER.search(self._log("master"))
            assert found, self._log("master")
            self.address = found[1]
            for number in range(self._workers):
                work = self.folder / f"work-{number}"
                options = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.address)
                # Each on a host of its own: Spark speculates on another host only.
                host = f"127.0.0.{number + 1}"
                self._start(f"worker-{number}", host, "org.apache.spark.deploy.worker.Worker", *options)
        except BaseException:
            self.close()
            raise
        return self

    def environment(self) -> dict[str, str]:
        """For a driver, which belongs to the family too."""
        return self.family.environment() | environment(self._python)

    def executors(self, worker: int) -> list[str]:
        """The numbers of the executors that a worker has started: it makes each a folder."""
        return sorted(folder.name for folder in (self.folder / f"work-{worker}").glob("app-*/*"))

    def _start(self, name: str, host: str, kind: str, *options: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True)
        command = [str(_SPARK / "bin" / "spark-class"), kind]
        place = ("--host", host, "--port", "0", "--webui-port", "0")
        with self._path(name).open("w") as log:
            process = subprocess.Popen(
                [*command, *place, *options],
                cwd=folder,
                env=self.environment() | _daemon(folder) | {"SPARK_LOCAL_IP": host},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)

    def close(self) -> None:
        self.family.kill()
        while self._started:
            self._started.pop().wait()

    @property
    def _ended(self) -> bool:
        return any(process.poll() is not None for process in self._started)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _log(self, name: str) -> str:
        return self._path(name).read_text(errors="replace")


def _daemon(folder: Path) -> dict[str, str]:
    return {
        "SPARK_HOME": str(_SPARK),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM.format(folder=folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it has a fixed port
    }
