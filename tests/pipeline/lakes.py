"""Tables of a lake from both sides: rows to put into them, and what pyiceberg alone, without Spark, finds there."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.table import Transaction
from pyspark.sql import DataFrame, SparkSession

from stafeta.config import Config
from stafeta.config.options import Lake as Settings
from stafeta.pipeline.lake import Lake, files
from stafeta.pipeline.lake.syncing import checksum_of, renamed
from stafeta.pipeline.lake.tables import TABLES
from tests.brokers import BrokerProcess
from tests.pipeline.queries import connect

BEGIN = datetime(2026, 11, 1, 8, tzinfo=UTC)
_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "producer": pa.string(),
    "source": pa.string(),
    "kind": pa.string(),
    "payload": pa.binary(),
    "counter": pa.int64(),
}
SCHEMA = pa.schema(_TYPES)


def settings(folder: Path) -> Settings:
    return Settings(warehouse=str(folder / "lake"))


def message(topic: str, offset: int, time: datetime | None = None) -> tuple[Any, ...]:
    """A message; one a second, if it does not say when."""
    time = BEGIN + timedelta(seconds=offset) if time is None else time
    return (topic, offset, time, "", "127.0.0.1:1", "int", str(offset).encode(), None)


def run(topic: str, start: int, end: int) -> list[tuple[Any, ...]]:
    """The messages from an offset up to, not including, another."""
    return [message(topic, offset) for offset in range(start, end)]


def arrow(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(arrow(rows))


def added(transaction: Transaction, rows: pa.Table) -> None:
    """Adds rows of one day to a table without Spark, as another program would."""
    url = f"{transaction._table.location()}/data/{uuid4().hex}.parquet"
    system, path = fs.FileSystem.from_uri(url)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    pq.write_table(rows, path, filesystem=system)
    transaction.add_files([url])


class Archived:
    """What of a broker's topics is in the lake, without the job that puts it there."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, config: Config) -> None:
        self._spark = spark
        self._broker = broker
        self._lake = Lake(config.lake)

    def take(self, topic: str, start: int, end: int) -> None:
        """Archives the messages from an offset up to, not including, another."""
        archive(self._spark, self._broker, self._lake, topic, start, end)


def archive(
    spark: SparkSession,
    broker: BrokerProcess,
    lake: Lake,
    subscribe: str,
    start: int = 1,
    end: int | None = None,
) -> None:
    """Puts messages of topics into the lake, with the files that the job archive would make, but by no job of
    Spark's."""
    with connect(broker) as connection:
        rows = connection.read(subscribe, columns=SCHEMA.names).select(SCHEMA.names).cast(SCHEMA)
    if end is not None:
        rows = rows.filter((pc.field("offset") >= start) & (pc.field("offset") < end))
    urls = files.write_table(rows, TABLES["messages"], lake.table("messages").location())
    paths = [files.place(url)[1] for url in urls]
    urls = [
        url.removesuffix(path) + renamed(path, checksum_of(path))
        for url, path in zip(urls, paths, strict=True)
    ]
    lake.archive_files(spark, urls, files.ranges(urls), "tests", 0)


def offsets(lake: Lake) -> dict[str, list[int]]:
    """The offsets in `messages`, by topic and in order. What is there twice is there twice."""
    found: dict[str, list[int]] = {}
    rows = lake.table("messages").scan(selected_fields=("topic", "offset")).to_arrow()
    for topic, offset in zip(*(rows.column(name).to_pylist() for name in ("topic", "offset")), strict=True):
        found.setdefault(topic, []).append(offset)
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def parquet(url: str) -> pa.Table:
    """What is in a file, as it lies there."""
    system, path = fs.FileSystem.from_uri(url)
    return pq.ParquetFile(path, filesystem=system).read()


def whole(first: int, last: int) -> list[int]:
    """All offsets, both ends included."""
    return list(range(first, last + 1))
