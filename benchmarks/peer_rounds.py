"""The same work on several systems in turn, so that a slow spell of the machine meets all of them."""

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from benchmarks.peer import MISSING, System
from benchmarks.percentiles import median
from benchmarks.results import Column, Value
from benchmarks.setting import Setting

SECONDS = 3.0  # that a round should take
TRIED = 0.3  # seconds that are enough to tell how many messages that takes
STEP = 10_000  # so that batches of every size come out even
ROUNDS = (3, 1)  # in earnest, and only to see that it works
LABELS = (
    Column("system", "system"),
    Column("how", "how"),
    Column("settings", "settings"),
    Column("version", "version"),
    Column("promise", "promise"),
)
RATES = (
    *LABELS,
    Column("rate", "messages/s"),
    Column("arrow", "Stafeta, Arrow: times", 1),
    Column("bytes", "Stafeta, bytes: times", 1),
)
ABOUT = 2  # of those say what a row is about

_S = TypeVar("_S", bound=System)
_T = TypeVar("_T")


class Turns(NamedTuple, Generic[_S, _T]):
    """A system and what was measured of it, round by round; nothing where it is not installed."""

    system: _S
    version: str | None
    measures: list[_T]


def take_turns(
    setting: Setting, systems: Sequence[_S], rounds: int, work: Callable[[_S, Path], _T]
) -> list[Turns[_S, _T]]:
    """`work` gets a folder to serve from, which does not exist yet and is gone afterwards."""
    turns: list[Turns[_S, _T]] = [Turns(system, system.version(), []) for system in systems]
    for number in range(rounds):
        for system, version, measures in turns:
            if version is not None:
                setting.say(f"round {number + 1} of {rounds}, {_named(system)}")
                measures.append(_in_a_folder(setting, system, work))
    return turns


def rates(
    setting: Setting, systems: Sequence[_S], work: Callable[[_S, Path, int], float]
) -> dict[_S, float | None]:
    """Messages a second of each, the round in the middle; `work` gets how many, and gives the seconds."""
    totals = {system: _round(setting, system, work) for system in systems if system.version() is not None}
    turns = take_turns(
        setting, systems, setting.sized(*ROUNDS), lambda system, folder: work(system, folder, totals[system])
    )
    return {system: totals[system] / median(measures) if measures else None for system, _, measures in turns}


def _round(setting: Setting, system: _S, work: Callable[[_S, Path, int], float]) -> int:
    """How many messages take a few seconds: tried out with more and more."""
    total = STEP
    while not setting.quick:
        setting.say(f"trying out {total:,}, {_named(system)}")
        seconds = _in_a_folder(setting, system, partial(_worked, work, total))
        if seconds > TRIED:
            return max(round(total / seconds * SECONDS / STEP), 1) * STEP
        total *= 10
    return total


def _worked(work: Callable[[_S, Path, int], float], total: int, system: _S, folder: Path) -> float:
    return work(system, folder, total)


def labels(system: System, how: str, promise: str) -> dict[str, Value]:
    """The values of `LABELS`."""
    return {
        "system": system.system,
        "how": how,
        "settings": system.settings,
        "version": system.version() or MISSING,
        "promise": promise,
    }


def _named(system: System) -> str:
    return ", ".join(filter(None, (system.system, system.settings)))


def ratio(figure: float | None, other: float | None) -> float | None:
    return None if figure is None or other is None else figure / other


def _in_a_folder(setting: Setting, system: _S, work: Callable[[_S, Path], _T]) -> _T:
    folder = setting.folder / "served"
    os.sync()  # so that nobody waits for what another one has written
    try:
        return work(system, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
