"""Frames of rows that the driver has."""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from stafeta.pipeline.runner.queries import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL: Final = "spark.sql.execution.arrow.localRelationThreshold"
_creating = threading.Lock()


def local_frame(
    spark: "SparkSession", rows: Iterable[tuple[object, ...]], columns: str, *, tasks: int | None = None
) -> "DataFrame":
    """Rows with columns in Spark's words. They go as Arrow: of plain rows Spark would make a frame in Python processes,
    which are slow to ask, and of a pool of their own that stays. Where so many tasks are to make more of them, Spark
    does not know how few they are: it would take what is made of them for as few, and send it to everybody."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(columns)
    fields, rows = to_arrow_schema(schema, timezone="UTC"), list(rows)
    arrays = [pa.array([row[index] for row in rows], one.type) for index, one in enumerate(fields)]
    table = pa.Table.from_arrays(arrays, schema=fields)
    if tasks is None or not is_local(spark):
        return spark.createDataFrame(table, schema)
    step = -(-len(rows) // tasks) or 1
    parts = [table.slice(start, step) for start in range(0, len(rows), step)]
    with _creating:
        before = spark.conf.get(_SMALL)
        spark.conf.set(_SMALL, "0")
        try:
            return spark.createDataFrame(pa.concat_tables(parts) if parts else table, schema)
        finally:
            spark.conf.set(_SMALL, str(before))
