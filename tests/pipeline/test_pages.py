"""The Python of the pages that needs Spark, or a lake, does what they say."""

import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stafeta.pipeline.jobs.archive import JOB
from tests.brokers import BrokerProcess
from tests.pages import PAGES, READINGS, ROOT, blocks
from tests.pipeline.queries import address, connect
from tests.pipeline.runners import configured, done_once
from tests.waiting import PATIENCE, wait_until

Variables = dict[str, Any]
BLOCKS = {
    str(page.relative_to(ROOT)): found
    for page in PAGES
    if (found := [block for block in blocks(page) if block.of_spark])
}


@pytest.fixture
def folder(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the blocks of a page run, with this broker for theirs, and readings in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAFETA_PIPELINE_BROKER", address(broker))
    with connect(broker) as connection:
        for topic in ("", "/temperature"):
            for name, values in READINGS.items():
                connection.publish(f"{name}{topic}", values, kind="float")
        connection.publish("readings/hall", [str(number) for number in range(100)], kind="int")
    return tmp_path


@pytest.mark.parametrize("page", [page for page in BLOCKS if page != "docs/lake.md"])
def test_a_session(spark: SparkSession, broker: BrokerProcess, folder: Path, page: str) -> None:
    variables: Variables = {"spark": spark, "__name__": page}
    printed = StringIO()
    with redirect_stdout(printed):
        for block in BLOCKS[page]:
            text = block.text.replace("grpc://127.0.0.1:8815", address(broker))
            text = text.replace(
                'format("stafeta")', f'format("stafeta").option("broker", "{address(broker)}")'
            )
            text = text.replace('"checkpoints/', f'"{folder}/checkpoints/')  # the JVM is in another folder
            exec(compile(text, str(block), "exec", dont_inherit=True), variables)
    CHECKS[page](spark, broker, variables, printed.getvalue())


def test_a_lake(spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
    done_once(spark, configured(broker, folder / "stafeta-lake"), JOB)
    text = "".join(block.text for block in BLOCKS["docs/lake.md"])
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "upb/hall" in done.stdout
    assert "21.25" in done.stdout


def of_readme(spark: SparkSession, broker: BrokerProcess, variables: Variables, printed: str) -> None:
    assert "|readings/hall|       49.5|" in printed


def of_spark(spark: SparkSession, broker: BrokerProcess, variables: Variables, printed: str) -> None:
    assert "|upb/hall/temperature|      21.25|" in printed
    assert variables["history"].count() in (0, 2)  # by the clock of this machine
    with connect(broker) as connection:
        variables["copy"](variables["rows"], 0)
        assert len(connection.read("upb/hall")) == 2 + 1 + 1  # ours, and the same row written and copied
        # It begins with what comes, once it has begun.
        wait_until(lambda: any(one.client == "flight/rollups" for one in connection.subscriptions()))
        connection.publish("upb/hall/temperature", ["22.00"], kind="float")
        variables["query"].processAllAvailable()
        variables["query"].stop()
        assert b"22.00" in connection.read("copies").column("payload").to_pylist()


def of_pipeline(spark: SparkSession, broker: BrokerProcess, variables: Variables, printed: str) -> None:
    rows = spark.sql(
        "SELECT 'a' AS topic, number, now() AS timestamp FROM VALUES (30.5), (30.0) AS of(number)"
    )
    assert [row.number for row in variables["hot"](rows).collect()] == [30.5]


def of_sql(spark: SparkSession, broker: BrokerProcess, variables: Variables, printed: str) -> None:
    assert re.search(r"readings/hall\| +100\|", printed)


CHECKS = {
    "README.md": of_readme,
    "docs/pipeline.md": of_pipeline,
    "docs/spark.md": of_spark,
    "docs/sql.md": of_sql,
}
