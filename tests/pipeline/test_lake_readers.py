"""Others than Spark read what the archive has written, and find what was published."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from stafeta.pipeline.jobs.archive import JOB
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.pipeline.queries import connect, numbered
from tests.pipeline.runners import configured, done_once
from tests.pipeline.sessions import ROOT
from tests.waiting import PATIENCE

_DUCKDB = """
import sys
import duckdb
import pyarrow.parquet as pq

connection = duckdb.connect()
messages = connection.read_parquet(sys.argv[2:])
counted = connection.sql("SELECT sum(decode(payload)::INT) FROM messages WHERE topic = 'hall/a'").fetchall()
print(counted[0][0])
pq.write_table(messages.to_arrow_table(), sys.argv[1])
"""
COLUMNS = ("topic", "offset", "timestamp", "producer", "source", "kind", "payload")


def publish(broker: BrokerProcess) -> None:
    """Numbers, text, JSON and bytes."""
    with connect(broker) as connection:
        connection.publish("hall/a", numbered(1, 500), kind="int")
        connection.publish("hall/b", ["20.50", "-1000"], kind="float")
        connection.publish("text", ["ștafetă", ""])
        connection.publish("json", [{"a": [1, None]}])
        connection.publish("bytes", [b"\x00\xff", b"'"])


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """In the order of topics and offsets."""
    plain = (column.to_pylist() for column in table.select(list(COLUMNS)).columns)
    return sorted(zip(*plain, strict=True))


def test_duckdb_polars_and_pyiceberg_find_what_was_published(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker)
    config = configured(broker, tmp_path / "lake")
    done_once(spark, config, JOB)
    with connect(broker) as connection:
        connection.publish("hall/a", ["501"], kind="int")
        expected = rows(connection.read("#", columns=list(COLUMNS)))
    done_once(spark, config, JOB)  # so that there are files of two commits
    assert len(expected) == 508
    # As somebody does who knows nothing but the folder.
    catalog = SqlCatalog("stafeta", uri=f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}")
    table = catalog.load_table("stafeta.messages")
    assert rows(table.scan().to_arrow()) == expected
    assert by_duckdb(table, tmp_path) == expected
    assert by_polars(table, monkeypatch) == expected
    narrow = table.scan(row_filter="topic = 'hall/b'", selected_fields=("topic", "payload"))
    assert set(narrow.to_arrow()["payload"].to_pylist()) == {b"-1000", b"20.50"}
    assert Lake(config.lake).archived() == {
        topic: [(1, 1 + sum(row[0] == topic for row in expected))] for topic in {row[0] for row in expected}
    }
    the_example_counts_the_same(tmp_path / "lake")


def by_duckdb(table: Table, folder: Path) -> list[tuple[Any, ...]]:
    """In a process of its own: when it ends, its bindings print pages about themselves."""
    files = [task.file.file_path for task in table.scan().plan_files()]
    done = subprocess.run(
        [sys.executable, "-c", _DUCKDB, str(folder / "rows.parquet"), *files],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == f"{501 * 502 // 2}\n", done.stderr
    # Its times come to Python as Arrow: by themselves they would need another package.
    return rows(pq.read_table(folder / "rows.parquet"))


def by_polars(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    import polars as pl  # slow to import, and every process of the tests collects this file

    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    frame = pl.scan_iceberg(table)
    numbers = pl.col("payload").cast(pl.String).cast(pl.Int64)
    assert frame.filter(pl.col("topic") == "hall/a").select(numbers.max()).collect().item() == 501
    return rows(pl.scan_iceberg(table.metadata_location).collect().to_arrow())


def the_example_counts_the_same(lake: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "duckdb_lake.py", lake],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {tuple(line.replace("│", " ").split()) for line in done.stdout.splitlines()}
    assert {("hall/a", "501", "251.0", "501"), ("hall/b", "2", "-489.75", "2")} <= found, done.stdout
