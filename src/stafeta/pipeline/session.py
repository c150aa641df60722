"""Spark sessions that have all that jobs need.

1. Spark is checked for before it is started: PySpark and Java are missed in a sentence.
2. A local Spark listens on loopback only, and its workers run in the Python that runs this.
3. Spark's log is nobody's business unless asked for: `verbose` lets it onto standard error. Where Spark does not start,
   its last words are reported.
4. A local Spark starts with an archive of its classes, if there is one (`class_archive.py`).
5. Its JVM and its workers are in a session of their own: Ctrl-C on the terminal is for whoever started them to handle.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from stafeta.errors import ConfigError
from stafeta.pipeline.class_archive import ClassArchive
from stafeta.pipeline.java import check_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from stafeta.config import Config

MASTER: Final = "local[*]"
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_THROWN: Final = re.compile(r'^Exception in thread "main" [\w.]+: ')
_WORKER_START: Final = str(Path(__file__).with_name("worker_start"))
_LEAVING: Final = 20.0  # seconds that the JVM has,
_MAKING: Final = 120.0  # and where it makes an archive of its classes
_JVM: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
# A JVM that is to answer one question compiles with less care, and what runs often a little later as well as any.
_QUICKLY: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier3DelayOn=0 -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_KNOCKING: Final = 5.0  # seconds that a server has to answer
_CONNECT: Final = 15002  # its port, unless another is given

# What can be set of a session at any time, also through Spark Connect.
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the only ones that Iceberg has
    "spark.sql.streaming.stateStore.providerClass": (  # which transformWithState needs
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.minBatchesToRetain": "20",  # of 100: each is some files in the checkpoint
    "spark.sql.streaming.stopTimeout": "10s",  # a source that waits for a broker cannot be interrupted
    # It breaks correlated subqueries over a union. (SPARK-59042)
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion",
}
# What a driver of our own has to be started with.
_OWN: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.scheduler.mode": "FAIR",  # a job and a long question take turns
    # A question for which there is no memory fails. By default it would end the JVM, and with it all jobs.
    "spark.executor.killOnFatalError.depth": "0",
    # Each micro-batch has classes of its own, and only a full collection gives back what they took.
    "spark.cleaner.periodicGC.interval": "5min",
}
# What only a Spark on this machine is started with.
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Without Hadoop's native library, the default starts nine processes (readlink, chmod) for the two files that each
    # micro-batch leaves in a checkpoint. This one starts four, and a rename is as atomic.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def session(
    config: "Config",
    *,
    master: str | None = None,
    remote: str | None = None,
    name: str = "stafeta",
    settings: Mapping[str, str] | None = None,
    verbose: bool = False,
    quick: bool = False,
    archive: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> "SparkSession":
    """A session on a master (by default this machine), or through Spark Connect. `settings` go before ours. One that is
    to be `quick` is for a question: it starts as soon as it can. With `archive` it leaves one of its classes for the
    next, if there is none: that takes some seconds at its end. `meanwhile` is called on another thread while a Spark of
    our own starts, which is mostly waiting."""
    if find_spec("pyspark") is None:
        raise ConfigError("Spark needs PySpark, which is missing: pip install 'stafeta[spark]'.")
    if master and remote:
        raise ConfigError("Spark runs on a master or through a remote server: name one of them.")
    if not verbose:
        _silence()
    if remote:
        return _connected(remote, dict(settings or {}))
    with ThreadPoolExecutor(1) as another:
        asked = another.submit(check_java)
        import pyspark.sql  # noqa: F401 - takes as long as Java does to tell its version

        java = asked.result()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or MASTER
    chosen = SETTINGS | _OWN
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= _LOCAL
        # A stateful query keeps the number of its first start: 200, the default, is for a cluster.
        chosen["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    classes = None
    if master.startswith("local") and not any(one in (settings or {}) for one in _JVM):
        classes = ClassArchive.of(java)
        options = (classes.options(make=archive) if classes else "", _QUICKLY if quick else "")
        chosen[_JVM[1]] = " ".join(filter(None, options))
    if verbose:
        chosen["spark.log.level"] = "WARN"
    another_thread = threading.Thread(target=meanwhile, name="while Spark starts", daemon=True)
    another_thread.start()
    spark = _started(master, chosen | {"spark.app.name": name} | dict(settings or {}), verbose, classes)
    another_thread.join()
    return spark


def end(spark: "SparkSession") -> None:
    """Stops a session, and the JVM if it is our own. May be repeated."""
    from pyspark.sql import SparkSession as Classic

    try:
        spark.stop()
    except Exception:
        # Whatever is left of it is gone with the JVM; a server looks after itself.
        logging.getLogger("stafeta.pipeline").debug("Spark does not stop", exc_info=True)
    if isinstance(spark, Classic):
        end_jvm(_LEAVING)


def _started(
    master: str, chosen: Mapping[str, str], verbose: bool, archive: ClassArchive | None
) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    interrupted = signal.getsignal(signal.SIGINT)
    words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    try:
        if SparkContext._gateway is None:
            conf = SparkConf(loadDefaults=False).setAll([("spark.master", master), *chosen.items()])
            streams: dict[str, Any] = {} if verbose else {"stdout": words, "stderr": words}
            with _python_path():
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"start_new_session": True, **streams}
                )
            gateway.class_archive = archive
            SparkContext._ensure_initialized(gateway=gateway)
        builder = SparkSession.builder.master(master)
        for name, value in chosen.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        if master.startswith("local"):
            _share_workers(spark.sparkContext)
        return spark
    except Exception as error:  # noqa: BLE001 - of Spark, py4j or the system
        end_jvm(0.0)
        raise ConfigError(f"Spark does not start: {_reason(error, words)}") from None
    finally:
        words.close()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)  # which Spark takes


def _share_workers(context: "SparkContext") -> None:
    """Lets functions run in the processes in which sources and sinks do. Spark keeps those apart whose environments
    differ, and gives sources that it finds by their names this one."""
    jvm: Any = context._jvm
    seed = jvm.System.getenv("PYTHONHASHSEED")  # which the start of the JVM sets, whatever it was before
    local = str(context.master).startswith("local")
    if seed is not None and (local or context.environment.get("PYTHONHASHSEED") == seed):
        context.environment.pop("PYTHONHASHSEED", None)  # tasks have that of the JVM
    spark = jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath()
    context.environment["PYTHONPATH"] = os.pathsep.join((spark, jvm.System.getenv("PYTHONPATH") or "")).strip(
        os.pathsep
    )


def python_path() -> str:
    """The PYTHONPATH for Spark, with which its Python processes start quickly."""
    return os.pathsep.join(filter(None, (_WORKER_START, os.environ.get("PYTHONPATH"))))


@contextmanager
def _python_path() -> Iterator[None]:
    """Gives it to the JVM that is started within, and to nothing else."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _connected(remote: str, settings: dict[str, str]) -> "SparkSession":
    _knock(remote)
    try:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(remote).create()
        for name, value in (SETTINGS | settings).items():
            spark.conf.set(name, value)
    except Exception as error:  # noqa: BLE001 - of Spark, gRPC or the system
        raise ConfigError(f"There is no Spark Connect server at {remote}: {_reason(error, None)}") from None
    return spark


def _knock(remote: str) -> None:
    """Spark would ask a server that is not there again and again, for minutes."""
    place = urlsplit(remote)
    try:
        if place.scheme != "sc" or not place.hostname:
            raise ConfigError(
                f"{remote!r} is no address of a Spark Connect server; write it as sc://127.0.0.1:15002."
            )
        socket.create_connection((place.hostname, place.port or _CONNECT), _KNOCKING).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"There is no Spark Connect server at {remote}: {error}.") from None


def _reason(error: Exception, words: IO[bytes] | None) -> str:
    """Why Spark did not start: what its JVM wrote last, or else the error's first line."""
    said: list[str] = []
    if words is not None:
        words.seek(0)
        said = [line.strip() for line in words.read().decode(errors="replace").splitlines() if line.strip()]
    sentences = [
        line
        for line in said
        if not line.startswith(("at ", "...", "WARNING", "Using Spark", "Setting", "To "))
    ]
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    exited = "JAVA_GATEWAY_EXITED" in first
    return _THROWN.sub("", sentences[-1]) if exited and sentences else first


def end_jvm(patience: float) -> bool:
    """Ends the JVM, which Spark leaves running for the next session until the process ends. False where it had to be
    killed, since it took longer than so many seconds."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return True
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    # Of attributes that it does not have it makes methods of Java.
    archive: ClassArchive | None = vars(gateway).get("class_archive")
    making = archive is not None and archive.making
    gateway.shutdown()
    if process is None:  # somebody else's, whose gateway we were given
        return True
    if process.stdin is not None:
        process.stdin.close()  # at the end of its input it leaves
    try:
        process.wait(max(patience, _MAKING) if making and patience else patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if archive is not None and making:
        archive.finish(whole=process.returncode == 0)
    return process.returncode != -signal.SIGKILL


def _silence() -> None:
    for name in LOGGERS:
        logging.getLogger(name).disabled = True
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
