"""Reading what a scrape says, as Prometheus does."""

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from stafeta.metrics import Scrape


def families(scrape: Scrape | str) -> dict[str, Metric]:
    text = scrape if isinstance(scrape, str) else scrape.body.decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found, "there is something to read"
    return found


def values(scrape: Scrape | str) -> dict[tuple[str, ...], float]:
    """By the name of a sample and its labels, in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families(scrape).values()
        for sample in family.samples
    }
