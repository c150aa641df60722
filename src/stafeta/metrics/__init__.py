"""What a broker tells Prometheus: counters that the broker keeps anyway, read when they are asked for."""

from stafeta.metrics.overview import Overview
from stafeta.metrics.scrape import Metrics, Scrape

__all__ = ["Metrics", "Overview", "Scrape"]
