"""Lets Spark find `format("stafeta")`: it imports each package named `pyspark_…`, and looks for `DefaultSource`."""

from stafeta.pipeline.connector.source import DefaultSource

__all__ = ["DefaultSource"]
