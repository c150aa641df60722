"""Spark Declarative Pipelines on topics: the example is run twice, as its README has it."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.brokers import BrokerProcess
from tests.pipeline.processes import Family
from tests.pipeline.queries import address, connect, payloads
from tests.pipeline.sessions import JVM, ROOT, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

_ROOMS = ("hall", "lab")


@pytest.fixture
def example(broker: BrokerProcess, tmp_path: Path) -> Path:
    """A copy of the example, for this broker; all that its runs keep is in the folder `kept` in it."""
    folder = tmp_path / "example"
    shutil.copytree(ROOT / "examples" / "declarative", folder)
    changes = {
        "/tmp/stafeta-declarative": str(folder / "kept"),
        "grpc://127.0.0.1:8815": address(broker),
        "-Dderby": f"{JVM.format(folder=tmp_path)} -Dderby",
    }
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        text = (folder / name).read_text()
        for before, after in changes.items():
            text = text.replace(before, after)
        (folder / name).write_text(text)
    return folder


def run(folder: Path) -> str:
    """What a run prints, as a person starts it in the folder of the example."""
    with Family() as family:
        more = {"SPARK_CONF_DIR": "conf", "SPARK_TESTING": "1"}  # this makes Spark take any free port
        done = subprocess.run(
            [Path(sys.executable).with_name("spark-pipelines"), "run"],
            cwd=folder,
            env=family.environment() | environment() | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=180,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout


def published(broker: BrokerProcess, first: int, last: int) -> None:
    """Readings of each room, both ends included: the n-th is n."""
    with connect(broker) as connection:
        for room in _ROOMS:
            numbers = [str(number) for number in range(first, last + 1)]
            connection.publish(f"example/{room}", numbers, kind="int")


def rows(folder: Path, table: str) -> list[dict[str, object]]:
    found = [
        pq.read_table(path).to_pylist() for path in (folder / "kept" / "tables" / table).glob("*.parquet")
    ]
    return [row for rows in found for row in rows]


def test_two_runs_in_a_row_bring_each_message_once_into_the_table_and_once_into_the_topic(
    broker: BrokerProcess, example: Path
) -> None:
    for first, last in ((1, 30), (31, 50)):
        published(broker, first, last)
        assert "Run is COMPLETED." in run(example)

        everything = [(f"example/{room}", number) for room in _ROOMS for number in range(1, last + 1)]
        table = Counter((row["topic"], row["offset"]) for row in rows(example, "readings"))
        assert table == Counter(everything)
        assert Counter(payloads(broker, "warm")) == Counter(
            f'{{"topic":"{topic}","offset":{number},"number":{number}.0}}'
            for topic, number in everything
            if number > 20
        )
        averages = [tuple(row.values()) for row in rows(example, "averages")]
        assert sorted(averages) == [(f"example/{room}", last, (last + 1) / 2) for room in _ROOMS]
