"""Statements one after the other in the shared session, as a session of one's own would carry them out."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stafeta.config import Config
from stafeta.pipeline.session import SETTINGS
from stafeta.pipeline.sql.queries import Queries

_RULES = "spark.sql.optimizer.excludedRules"


class Kept:
    """An output that keeps results."""

    def __init__(self) -> None:
        self.shown = False
        self.dropped = 0
        self.results: list[pa.Table] = []

    def begin(self, schema: pa.Schema) -> None:
        self._schema, self._batches = schema, list[pa.RecordBatch]()

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def end(self) -> None:
        self.results.append(pa.Table.from_batches(self._batches, self._schema))

    def drop(self) -> None:
        self.dropped += 1


class Asked:
    """Statements one after the other, and what was told beside their results."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self.output = Kept()
        self.told: list[str] = []
        self.queries = Queries(spark, config, self.told.append, long=1)

    def __call__(self, statement: str, limit: int | None = None) -> list[tuple[object, ...]]:
        """The rows of a statement."""
        self.done = self.queries.run(statement, self.output, limit)
        return list(zip(*(column.to_pylist() for column in self.output.results[-1].columns), strict=True))


@pytest.fixture
def ask(spark: SparkSession, config: Config) -> Iterator[Asked]:
    """For a file that has a fixture `config`. No view is left."""
    spark.conf.set(_RULES, SETTINGS[_RULES])
    yield Asked(spark, config)
    spark.conf.unset(_RULES)
    for name in ("messages", "readings", "mine"):
        spark.catalog.dropTempView(name)
    spark.catalog.dropGlobalTempView("messages")
