"""The Spark that is measured: one session for all benchmarks of a process, made here and nowhere else."""

import atexit
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from benchmarks.load import LoadFailed
from benchmarks.setting import Setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
MEMORY = ("2g", "512m")  # of the driver, in earnest, and only to see that it works
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it is over before the better compiler has paid
SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_QUIET = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
_PATIENCE = 60.0  # seconds for the JVM to leave


def session(setting: Setting) -> "SparkSession":
    """The session, which lasts as long as the process. What it writes is beside the setting's folder."""
    return _session(setting.folder.parent, setting.quick)


def about(spark: "SparkSession") -> str:
    """A sentence for the notes: which Spark, on which Java, with which settings."""
    java = _java(spark).lang.System.getProperty("java.version")
    names = ("spark.driver.memory", *SETTINGS)
    said = ", ".join(f"{name}={spark.conf.get(name)}" for name in names)
    return f"Spark {spark.version} on Java {java}, {MASTER}, {said}, and all else as it is by default."


def driver(spark: "SparkSession") -> int:
    """The process id of the driver's JVM. Its threads are the executor, too."""
    pid: int = _java(spark).lang.ProcessHandle.current().pid()
    return pid


def collect_garbage(spark: "SparkSession") -> None:
    """Has the JVM let go of what nobody needs."""
    _java(spark).lang.System.gc()


@cache
def _session(folder: Path, quick: bool) -> "SparkSession":
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # PySpark says so of every pandas 3, which none of this uses.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    place = Path(mkdtemp(prefix="stafeta-bench-spark-", dir=folder))
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    java = f"-Djava.io.tmpdir={place}{' ' + QUICK_JAVA if quick else ''}"
    settings = {
        **SETTINGS,
        **_QUIET,
        "spark.driver.extraJavaOptions": java,
        "spark.driver.memory": MEMORY[quick],
        "spark.local.dir": str(place),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    builder = SparkSession.builder.master(MASTER).appName("benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        rmtree(place, ignore_errors=True)
        raise LoadFailed(f"Spark has not started: {error} It needs Java 17.") from error
    atexit.register(_end, spark, place)
    return spark


def _end(spark: "SparkSession", place: Path) -> None:
    """Ends the JVM, which would otherwise still write into its folder while that is removed."""
    from stafeta.pipeline.session import end_jvm

    spark.stop()
    end_jvm(_PATIENCE)
    rmtree(place, ignore_errors=True)


def _java(spark: "SparkSession") -> Any:
    machine = spark.sparkContext._jvm
    assert machine is not None
    return machine.java
