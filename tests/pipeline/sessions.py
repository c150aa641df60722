"""Spark sessions for tests: small, quiet, on loopback only, and with no JVM left when they end.

1. A process has one session at a time.
2. Python workers are of the same environment as the test, and can import `tests`.
3. Everything that Spark writes goes below one folder.
"""

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from stafeta.pipeline.session import end_jvm, python_path
from tests.pipeline.forked_python import forking_python
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"  # which tests.pipeline.class_archive makes

IMPORTED_AHEAD = str(Path(__file__).with_name("ahead"))
"""On the PYTHONPATH, it lets Spark's Python processes start quickly."""

_ARCHIVED = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
# Tests are over before the better compiler would have paid for itself. Without that one a JVM has room for 48 MB of
# code only: it would throw away again and again what it is about to need.
PLAIN_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:-UsePerfData "
    "-Djava.io.tmpdir={folder}"
)
JVM = f"{PLAIN_JVM} {_ARCHIVED}"

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To write, compile and load Java for a query takes longer than some rows are worth. (`make demo`, which CI runs, the
soaks and tests/cli/test_sql.py have what users get.)"""

PLAIN_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""The other asks a program, `readlink`, about each file of a checkpoint. (A local Spark of ours has this one, too.)"""

QUICK = INTERPRETED | PLAIN_FILES
"""For a Spark of a test's own."""


def environment(python: Path = Path(sys.executable)) -> dict[str, str]:
    """What the environment of a driver, a master or a worker has to say."""
    return {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join((str(ROOT), python_path(), IMPORTED_AHEAD)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def settings(folder: Path) -> dict[str, str]:
    """What all sessions have in common."""
    return PLAIN_FILES | {
        "spark.buffer.pageSize": "1m",  # by default each task that sorts or groups some rows begins with 16 MB
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JVM.format(folder=folder),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def session(
    master: str, folder: Path, more: Mapping[str, str] | None = None, *, forked: bool = False
) -> Iterator[SparkSession]:
    """A session, and afterwards neither it nor its JVM. In one that is `forked`, Python processes start at once."""
    assert SparkContext._active_spark_context is None, "this process has a Spark session already"
    folder.mkdir(parents=True, exist_ok=True)
    python = forking_python() if forked else Path(sys.executable)
    builder = SparkSession.builder.master(master).appName("stafeta-tests")
    for name, value in (settings(folder) | dict(more or {})).items():
        builder = builder.config(name, value)
    try:
        spark = _started(builder, python)
        try:
            yield spark
        except Exception:
            traceback.print_exc()  # what it says is asked of the JVM, which is gone soon
            raise
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.stop()
    finally:
        assert end_jvm(PATIENCE), f"Spark's JVM has not left within {PATIENCE:g} s"


def _started(builder: SparkSession.Builder, python: Path) -> SparkSession:
    """Starts it. The JVM inherits the environment; what else this process starts does not."""
    interrupted = signal.getsignal(signal.SIGINT)
    before = dict(os.environ)
    os.environ.update(environment(python))
    try:
        return builder.getOrCreate()
    finally:
        os.environ.clear()
        os.environ.update(before)
        # Spark would take Ctrl-C for a wish to cancel jobs; pytest has to see it.
        signal.signal(signal.SIGINT, interrupted)
