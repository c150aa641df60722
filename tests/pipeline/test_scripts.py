"""What people copy and run, as it stands: the lines that `stafeta spark` prints, and the examples. They share a JVM."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import stafeta
from tests.brokers import BrokerProcess
from tests.pipeline import sessions
from tests.pipeline.forked_python import forking_python
from tests.pipeline.processes import Family
from tests.pipeline.queries import address
from tests.pipeline.sessions import INTERPRETED, ROOT, settings
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_FOUND = """
import sys
assert not [name for name in sys.modules if "stafeta" in name], "Spark finds the format by itself"
print(messages.columns)
print([(row.topic, row.number) for row in messages.orderBy('offset').collect()])
print(spark.conf.get('spark.sql.python.filterPushdown.enabled'))
"""


class Scripts(NamedTuple):
    """What scripts have printed, line by line, and the broker of the examples."""

    printed: list[str]
    batch: list[str]
    streaming: list[str]
    broker: str


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    folder = tmp_path_factory.mktemp("scripts")
    keeping = BrokerProcess(folder / "kept", "--set", 'topics."#".keep=36500d', doors=("flight",))
    # The examples' own is as it is when nothing is configured: it keeps what subscriptions wait for.
    plain = BrokerProcess(folder / "data", doors=("flight",))
    with Family() as family, keeping, plain:
        with stafeta.connect(address(keeping)) as connection:
            connection.publish("hall/a", ["20.5", "21.5"], kind="float")
        script = folder / "script.py"
        script.write_text(printed_lines(address(keeping)) + _FOUND)
        examples = [ROOT / "examples" / name for name in ("spark_batch.py", "spark_streaming.py")]
        words = [[str(script)], *([str(example), "--broker", address(plain)] for example in examples)]
        host = [sys.executable, "-m", "tests.pipeline.scripts", str(folder / "result"), str(forking_python())]
        done = subprocess.run(
            [*host, *map(shlex.join, words)],
            cwd=ROOT,
            env=environment(family, folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not family.members(), "its JVM is left"
        printed, batch, streaming = map(str.splitlines, json.loads((folder / "result").read_text()))
        yield Scripts(printed, batch, streaming, address(plain))


def printed_lines(broker: str) -> str:
    command = [sys.executable, "-m", "stafeta", "spark", "--broker", broker, "--subscribe", "hall/+"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def environment(family: Family, folder: Path) -> dict[str, str]:
    """A small Spark, and a python3 on the PATH that is none: nothing may depend on that."""
    (folder / "spark").mkdir()
    program = folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    small = settings(folder / "spark") | INTERPRETED | {PUSHDOWN: "false"}
    conf = [word for name, value in small.items() for word in ("--conf", f"{name}={value}")]
    return family.environment() | {
        "PYTHONPATH": sessions.environment()["PYTHONPATH"],
        "PYSPARK_SUBMIT_ARGS": shlex.join([*conf, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_what_stafeta_spark_prints_runs_as_it_stands_and_needs_no_import_of_ours(scripts: Scripts) -> None:
    columns, rows, pushdown = scripts.printed
    assert columns.startswith("['topic', 'offset', 'timestamp', 'producer', 'source', 'kind', 'payload'")
    assert rows == "[('hall/a', 20.5), ('hall/a', 21.5)]"
    assert pushdown == "true"


def test_the_batch_example_reads_asks_and_writes(scripts: Scripts) -> None:
    lines = scripts.batch
    assert lines[0] == "Published 4,320 readings."
    assert "Before six it was colder than 6 degrees on the roof in 30 minutes." in lines
    assert [line for line in lines if "    1440|" in line] == [
        "|example/hall|    1440|19.0695|",
        "| example/lab|    1440|22.0110|",
        "|example/roof|    1440| 8.0198|",
    ]
    assert "|example/lab|   6|  22.44|  26.01|" in lines
    assert lines[-1] == 'Wrote 72 averages, first {"topic":"example/hall","hour":0,"average":19.07}'


def test_the_streaming_example_counts_each_reading_once(scripts: Scripts) -> None:
    lines = scripts.streaming
    parts = [line.partition(", up to") for line in lines if "micro-batch" in line]
    assert [(rows, rest[rest.index("lag") :]) for rows, _, rest in parts] == [
        ("  micro-batch 0: 0 rows", "lag 0"),
        ("  micro-batch 1: 250 rows", "lag 350"),
        ("  micro-batch 2: 250 rows", "lag 100"),
        ("  micro-batch 3: 100 rows", "lag 0"),
        ("  micro-batch 4: 0 rows", "lag 0"),
        ("  micro-batch 4: 20 rows", "lag 0"),
    ]
    assert parts[-1][2].startswith(" {'example/stream/hall': 311, 'example/stream/lab': 311}")
    assert [line for line in lines if " has " in line] == [
        f"  example/averages has {count} messages." for count in (0, 6, 6, 8)
    ]
    assert sorted(lines[-2:]) == [
        '{"topic":"example/stream/hall","readings":310,"average":19.2}',
        '{"topic":"example/stream/lab","readings":310,"average":22.2}',
    ]


def test_the_examples_end_the_subscriptions_that_they_have_made(scripts: Scripts) -> None:
    with stafeta.connect(scripts.broker) as connection:
        assert not any(topic.subscribers for topic in connection.topics())
