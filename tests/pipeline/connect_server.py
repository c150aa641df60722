"""A Spark Connect server from the pyspark package, as a process of its own.

1. It listens on loopback, on any free port, and is a small local Spark.
2. What it starts (its JVM, the Python of `foreachBatch`, Python workers) ends with it.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from stafeta.clients.closing import Closing
from tests.pipeline.processes import Family
from tests.pipeline.sessions import INTERPRETED, environment, settings
from tests.waiting import PATIENCE, wait_until

_SPARK = Path(pyspark.__file__).parent
_STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")


class ConnectServer(Closing):
    """Starts with `with`, and is then at `address`."""

    def __init__(self, folder: Path, master: str = "local[2]", python: Path = Path(sys.executable)) -> None:
        self.folder = folder
        self._python = python
        self._master = master
        self.tables = folder / "warehouse"
        self.family = Family()
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        try:
            with self._path.open("w") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    cwd=self.folder,
                    env=self.environment() | {"SPARK_HOME": str(_SPARK)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            wait_until(lambda: _STARTED.search(self.log) or self._ended, PATIENCE)
            found = _STARTED.search(self.log)
            assert found, self.log
            self.address = f"sc://127.0.0.1:{found[1]}"
        except BaseException:
            self.close()
            raise
        return self

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def environment(self) -> dict[str, str]:
        """For a client, which belongs to the family too."""
        return self.family.environment() | environment(self._python)

    def _command(self) -> list[str]:
        chosen = (
            settings(self.folder)
            | INTERPRETED
            | {
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
                "spark.log.level": "INFO",  # which tells the port
                "spark.sql.warehouse.dir": str(self.tables),
            }
        )
        words = [str(_SPARK / "bin" / "spark-submit"), "--master", self._master]
        words += [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
        return [
            *words,
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ]

    @property
    def _path(self) -> Path:
        return self.folder / "server.log"

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        self.family.kill()
        if self._process is not None:
            self._process.wait()
