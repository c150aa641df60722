"""Several ways to do the same in one Spark session, in turn, once it is warm."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

from benchmarks.setting import Setting

ROUNDS = (3, 1)  # in earnest, and only to see that it works

_T = TypeVar("_T")


def take_turns(setting: Setting, ways: Mapping[str, Callable[[], _T]]) -> dict[str, list[_T]]:
    """What each way gave, round by round, after a first round that only warms up."""
    measures: dict[str, list[_T]] = {label: [] for label in ways}
    if not setting.quick:
        for label, work in ways.items():
            setting.say(f"warming up, {label}")
            work()
    rounds = setting.sized(*ROUNDS)
    for number in range(rounds):
        for label, work in ways.items():
            setting.say(f"round {number + 1} of {rounds}, {label}")
            measures[label].append(work())
    return measures


def chosen(setting: Setting) -> str:
    """For the notes: which round it is."""
    earnest = f"The round in the middle of {ROUNDS[0]}, all ways in turn, after one that does not count"
    return setting.sized(earnest, "The only round")


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = perf_counter()
    work()
    return perf_counter() - start
