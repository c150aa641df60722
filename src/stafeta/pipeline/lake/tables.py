"""The tables of the lake: their columns, and how their files are parted.

pyiceberg is imported where a table is made: Spark's tasks know the columns without it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

# Whoever takes files from a table writes the lists anew that have them: short ones, not all of a large one.
LISTS: Final = {"commit.manifest.target-size-bytes": str(512 << 10)}
# One who appends has to look first whether it is there already, and so retries himself.
_SETTINGS: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    **LISTS,
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.column.payload": "none",
    "write.parquet.compression-codec": "zstd",
}


@dataclass(frozen=True)
class Definition:
    """A table. Its columns are in Spark's words; the rows of a file are sorted by `order`, and of one day of `day`."""

    columns: str
    day: str
    order: tuple[str, ...]

    @property
    def types(self) -> dict[str, str]:
        """The columns' types by their names."""
        return dict(column.split() for column in self.columns.split(", "))

    @property
    def names(self) -> list[str]:
        return list(self.types)

    def schema(self) -> "Schema":
        from pyiceberg.schema import Schema
        from pyiceberg.types import (
            BinaryType,
            DoubleType,
            IcebergType,
            LongType,
            NestedField,
            StringType,
            TimestamptzType,
        )

        types: dict[str, IcebergType] = {
            "string": StringType(),
            "bigint": LongType(),
            "double": DoubleType(),
            "binary": BinaryType(),
            "timestamp": TimestamptzType(),
        }
        fields = enumerate(self.types.items(), 1)
        return Schema(*(NestedField(number, name, types[type_]) for number, (name, type_) in fields))

    def partition_spec(self) -> "PartitionSpec":
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import DayTransform

        field = self.names.index(self.day) + 1
        return PartitionSpec(PartitionField(field, 1000, DayTransform(), "day"))

    def sort_order(self) -> "SortOrder":
        from pyiceberg.table.sorting import SortField, SortOrder
        from pyiceberg.transforms import IdentityTransform

        fields = [SortField(self.names.index(name) + 1, IdentityTransform()) for name in self.order]
        return SortOrder(*fields)

    def settings(self) -> dict[str, str]:
        return dict(_SETTINGS)


TABLES: Final = {
    "messages": Definition(
        "topic string, offset bigint, timestamp timestamp, producer string, source string, kind string, "
        "payload binary, counter bigint",
        day="timestamp",
        order=("topic", "offset"),
    ),
    "rollups": Definition(
        "topic string, size string, start timestamp, end timestamp, count bigint, min double, max double, "
        "mean double, stddev double, p50 double, p95 double, p99 double, first double, last double",
        day="start",
        order=("topic", "start"),
    ),
    "dead": Definition(
        "topic string, offset bigint, timestamp timestamp, kind string, payload binary, reason string",
        day="timestamp",
        order=("topic", "offset"),
    ),
}
