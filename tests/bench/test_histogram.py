"""Latencies are counted in buckets, and what comes out of them is what went in, within a bucket's width."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from stafeta.bench.histogram import STEPS, Histogram

LATENCIES = st.lists(st.integers(0, 10**12), min_size=1)
WIDTH = 2 ** (1 / STEPS)


@given(LATENCIES, st.floats(0, 100))
def test_a_percentile_is_off_by_a_buckets_width_at_most(latencies: list[int], percent: float) -> None:
    histogram = filled(latencies)
    needed = max(math.ceil(len(latencies) * percent / 100), 1)
    exact = sorted(latencies)[needed - 1]
    assert min(exact, 1) <= alone(histogram, percent) / max(exact, 1) <= WIDTH * 1.000001
    assert alone(histogram, 100) == histogram.largest == max(latencies)


@given(LATENCIES, st.lists(st.floats(0, 100), min_size=1))
def test_several_percentiles_are_what_each_is_alone(latencies: list[int], percents: list[float]) -> None:
    histogram = filled(latencies)
    percents.sort()
    assert histogram.percentiles(percents) == [alone(histogram, percent) for percent in percents]


@given(LATENCIES, LATENCIES)
def test_several_histograms_are_one_after_json(some: list[int], others: list[int]) -> None:
    plains = [json.loads(json.dumps(filled(each).to_plain())) for each in (some, others)]
    assert Histogram.merged(plains).to_plain() == filled(some + others).to_plain()


@given(LATENCIES, st.integers(1, 1000))
def test_many_of_one_latency_are_as_many_of_it(latencies: list[int], count: int) -> None:
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency, count)
    assert histogram.total == len(latencies) * count
    assert alone(histogram, 50) == alone(filled(latencies), 50)


def filled(latencies: list[int]) -> Histogram:
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    return histogram


def alone(histogram: Histogram, percent: float) -> float:
    (found,) = histogram.percentiles([percent])
    return found
