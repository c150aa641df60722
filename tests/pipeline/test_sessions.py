"""The sessions that tests use, tested themselves: workers import `tests`, and nothing is left afterwards."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.serializers import UTF8Deserializer, read_int, write_with_length
from pyspark.sql import SparkSession

from tests.pipeline.forked_python import RUNNER, forking_python
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


def test_a_source_is_forked_and_ends_with_what_spark_has_started_and_that_with_it() -> None:
    python = forking_python()
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        jvm.settimeout(PATIENCE)
        ours = {"PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": "x"}
        for killed in (True, False):
            with subprocess.Popen(
                [python, "-m", RUNNER], env=os.environ | ours, stderr=subprocess.PIPE, text=True
            ) as started:
                connection, _ = jvm.accept()
                with connection, connection.makefile("rwb") as stream:
                    assert UTF8Deserializer().loads(stream) == "x"  # type: ignore[no-untyped-call]
                    write_with_length(b"ok", stream)  # type: ignore[no-untyped-call]
                    stream.flush()
                    source = psutil.Process(read_int(stream))  # type: ignore[no-untyped-call]
                    assert source.pid != started.pid
                    if killed:
                        started.kill()
                        wait_until(lambda source=source: not source.is_running())  # type: ignore[misc]
                assert started.wait(PATIENCE) == (-9 if killed else 0)
                wait_until(lambda source=source: not source.is_running())  # type: ignore[misc]
                assert started.stderr is not None
                assert "Traceback" not in started.stderr.read()


@pytest.mark.soak  # each session looks itself, in its end, whether its JVM has left
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
