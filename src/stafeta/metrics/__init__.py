"""What a broker tells Prometheus: counters that the broker keeps anyway, read when they are asked for."""

from stafeta.metrics.scrape import MOST_TOPICS, TOPICS, Metrics, Scrape

__all__ = ["MOST_TOPICS", "TOPICS", "Metrics", "Scrape"]
