"""Spark imports every package named `pyspark_…` in each session: ours costs little, does nothing, and is enough."""

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

HEAVY = {"pyarrow.flight", "zmq", "uvloop", "pandas"}

_IMPORT = """
import os, sys, threading
environment, path, hooks = dict(os.environ), list(sys.path), (sys.excepthook, threading.excepthook)
opened = []
sys.addaudithook(lambda event, args: opened.append((event, args)) if event in EVENTS else None)
EVENTS = {"socket.connect", "socket.bind", "subprocess.Popen", "os.mkdir", "os.remove", "os.rename", "os.fork"}

import pyspark_stafeta

assert threading.active_count() == 1, threading.enumerate()
assert not opened, opened
assert (dict(os.environ), list(sys.path)) == (environment, path)
assert (sys.excepthook, threading.excepthook) == hooks
print(*pyspark_stafeta.__all__)
print(*sys.modules)
"""


def test_the_import_is_light_and_has_no_side_effects(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", _IMPORT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    exposed, modules = done.stdout.splitlines()
    assert exposed == "DefaultSource"
    loaded = set(modules.split())
    assert "stafeta.pipeline.connector.source" in loaded
    assert not {name for name in loaded if name in HEAVY or name.split(".")[0] in HEAVY}
    assert not list(tmp_path.iterdir()), "it has made files"
    assert done.stderr == ""


def test_the_format_is_found_under_its_name_in_any_letters(spark: SparkSession) -> None:
    assert spark.read.format("Stafeta").option("subscribe", "hall").load().columns[0] == "topic"
