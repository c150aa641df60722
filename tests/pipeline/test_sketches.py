"""Sketches: quantiles of numbers that were put together in any order, against all of them sorted."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stafeta.pipeline.jobs.rolling.sketches import K, Sketches

RANKS = (0.001, 0.05, 0.5, 0.95, 0.99, 1.0)


def sketches(groups: Sequence[Any]) -> Sketches:
    counts = np.array([len(group) for group in groups], np.int64)
    values = np.array([value for group in groups for value in group], float)
    return Sketches.of(values, counts, np.arange(len(groups)))


def weight(one: Sketches) -> int:
    return int((1 << one.levels.astype(np.int64)).sum())


def furthest(one: Sketches, values: Any) -> float:
    """By how much of the rank a quantile of a single sketch is off, at most."""
    ordered = np.sort(values)
    off = 0.0
    for rank in RANKS:
        (found,) = one.quantiles(rank)
        below = np.searchsorted(ordered, found, "left") / len(ordered)
        upto = np.searchsorted(ordered, found, "right") / len(ordered)
        off = max(off, below - rank, rank - upto)
    return off


numbers = st.floats(allow_nan=False, width=32) | st.integers(-3, 3).map(float)


@given(st.lists(st.lists(st.lists(numbers, max_size=40), min_size=1, max_size=4), min_size=1, max_size=6))
@settings(deadline=None)
def test_small_sketches_are_exact_however_they_were_put_together(cases: list[list[list[float]]]) -> None:
    parts = sketches([part for case in cases for part in case])
    merged = parts.merged(np.array([len(case) for case in cases]), np.zeros(len(cases), np.int64))
    for rank in RANKS:
        found = merged.quantiles(rank).tolist()
        for case, quantile in zip(cases, found, strict=True):
            ordered = sorted(value for part in case for value in part)
            assert len(ordered) <= K
            if ordered:
                assert quantile == ordered[max(math.ceil(round(rank * len(ordered), 6)), 1) - 1]
            else:
                assert math.isnan(quantile)


@pytest.mark.parametrize("count", [201, 999, 5_000, 100_000])
@pytest.mark.parametrize("parts", [1, 7, 60])
@pytest.mark.parametrize("shape", ["even", "skewed", "sorted", "repeating"])
def test_large_sketches_are_small_and_near(count: int, parts: int, shape: str) -> None:
    """Put together all at once, and one after the other."""
    chance = np.random.default_rng(count)
    values = {
        "even": chance.random(count),
        "skewed": np.exp(chance.normal(0, 3, count)),
        "sorted": np.arange(count, dtype=float),
        "repeating": chance.integers(0, 5, count).astype(float),
    }[shape]
    cut = np.array_split(values, parts)
    split = sketches(cut)
    lot = np.array([count])
    at_once = split.merged(np.array([parts]), lot)
    in_turn = split.take(np.array([0]))
    for place in range(1, parts):
        in_turn = Sketches.joined([in_turn, split.take(np.array([place]))]).merged(np.array([2]), lot + place)
    for one in (at_once, in_turn):
        assert weight(one) == count, "none is lost"
        assert len(one.numbers) < 4 * K
        assert (np.diff(one.numbers) >= 0).all()
        assert furthest(one, values) < 0.0166
    again = split.merged(np.array([parts]), lot)
    assert again.numbers.tolist() == at_once.numbers.tolist(), "the same lots are drawn again"


def test_what_is_no_number_is_in_no_sketch_and_what_is_infinite_is() -> None:
    found = sketches([[math.nan, 4.0, math.nan], [math.nan], [math.inf, 1.0, -math.inf], []])
    assert found.counts.tolist() == [1, 0, 3, 0]
    assert [str(one) for one in found.quantiles(0.5)] == ["4.0", "nan", "1.0", "nan"]
    assert found.quantiles(1.0)[2] == math.inf


def test_sketches_are_taken_and_joined_as_what_they_are() -> None:
    groups = [[3.0, 1.0], list(map(float, range(1_000))), [], [2.0]]
    all_of_them = sketches(groups)
    some = all_of_them.take(np.array([3, 1]))
    assert some.quantiles(0.5)[0] == 2.0
    assert weight(some) == 1 + 1_000
    both = Sketches.joined([some, all_of_them.take(np.array([0]))])
    assert both.quantiles(1.0).tolist() == [2.0, some.quantiles(1.0)[1], 3.0]


@given(
    st.lists(st.integers(K + 1, 3 * K), min_size=1, max_size=5),
    st.integers(0, 2**60),
)
@settings(deadline=None)
def test_the_first_turn_is_as_any_other(sizes: list[int], lot: int) -> None:
    counts = np.array(sizes, np.int64)
    values = np.concatenate([np.arange(size, dtype=float) for size in sizes])
    plain = Sketches(values, np.zeros(len(values), np.int8), counts)
    lots = lot + np.arange(len(sizes))
    owner = np.repeat(np.arange(len(sizes)), counts)
    by_level = np.zeros((len(sizes), 62), np.int64)
    by_level[:, 0] = counts
    one, other = plain._plain_halved(lots), plain._halved(owner, np.zeros_like(counts), by_level, lots)
    for name in ("numbers", "levels", "counts"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
