"""Tables in Apache Iceberg's format: Spark writes and reads their Parquet files, pyiceberg commits them. No jar."""

from stafeta.pipeline.lake.lake import Lake, Written

__all__ = ["Lake", "Written"]
