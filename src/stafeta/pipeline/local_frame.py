"""Frames of rows that the driver has."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def local_frame(
    spark: "SparkSession", rows: Iterable[tuple[object, ...]], columns: str, *, tasks: int = 1
) -> "DataFrame":
    """Rows with columns in Spark's words, for so many tasks. They go as Arrow: of plain rows Spark would make a frame
    in Python processes, which are slow to ask, and of a pool of their own that stays."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(columns)
    fields, rows = to_arrow_schema(schema, timezone="UTC"), list(rows)
    arrays = [pa.array([row[index] for row in rows], one.type) for index, one in enumerate(fields)]
    table = pa.Table.from_arrays(arrays, schema=fields)
    step = -(-len(rows) // tasks) or 1
    parts = [table.slice(start, step) for start in range(0, len(rows), step)]
    return spark.createDataFrame(pa.concat_tables(parts) if parts else table, schema)
