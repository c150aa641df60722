"""Tables in Apache Iceberg's format: Spark writes and reads their Parquet files, pyiceberg commits them. No jar."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stafeta.pipeline.lake.lake import Lake, Source, Written

__all__ = ["Lake", "Source", "Written"]


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: Spark's tasks write files without pyiceberg, which takes more than a second
    to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stafeta.pipeline.lake import lake

    return getattr(lake, name)
