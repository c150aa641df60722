"""The sessions that tests use, tested themselves: workers import `tests`, and nothing is left afterwards."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.processes import Family, command
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

_PROGRAM = """
import os, sys
from pathlib import Path

import psutil

from tests.pipeline.sessions import session

before = dict(os.environ)
with session("local[1]", Path(sys.argv[1])) as spark:
    assert spark.range(3).count() == 3
    assert "java" in {child.name() for child in psutil.Process().children(recursive=True)}
    assert dict(os.environ) == before
assert not psutil.Process().children(recursive=True)
"""


def interpreters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ahead = "stafeta.pipeline.connector.sink" in sys.modules
    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"executable": sys.executable, "ahead": ahead}] * batch.num_rows)


def test_python_workers_are_of_this_environment_and_import_the_tests_and_find_ours_imported(
    spark: SparkSession,
) -> None:
    assert interpreters.__module__ == "tests.pipeline.test_sessions", "it would be pickled by value"
    rows = spark.range(4).mapInArrow(interpreters, "executable string, ahead boolean").collect()
    assert {(row.executable, row.ahead) for row in rows} == {(sys.executable, True)}


def test_nothing_is_left_of_a_session(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    with Family() as family:
        done = subprocess.run(
            program, env=family.environment(), timeout=PATIENCE, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not [command(process) for process in family.members()]


def test_a_family_is_found_and_ended_also_where_the_parent_has_gone() -> None:
    orphan = (
        "from subprocess import DEVNULL, Popen; "
        "print(Popen(['sleep', '600'], stdout=DEVNULL, start_new_session=True).pid)"
    )
    with Family() as family:
        done = subprocess.run(
            [sys.executable, "-c", orphan], env=family.environment(), stdout=subprocess.PIPE, check=True
        )
        wait_until(lambda: [process.pid for process in family.members()] == [int(done.stdout)])
    assert not family.members()
