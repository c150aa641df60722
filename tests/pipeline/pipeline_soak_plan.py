"""Who of the pipeline is killed, in which order, and when: all of it follows from a seed."""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MOMENTS: Final[dict[str, Sequence[str]]] = {
    "driver": ("archived", "planned", "visible", "any time"),
    "worker": ("busy", "planned", "any time"),
    "broker": ("planned", "archived", "any time"),
}
VICTIMS: Final = tuple(MOMENTS)
TOLD: Final = {
    "archived": "as a commit reached the lake",
    "planned": "as Spark had planned a micro-batch",
    "visible": "as rollups became visible",
    "busy": "while it spoke with the broker",
    "any time": "at any time",
}
"""Spark writes down what a micro-batch holds, tasks read it, a commit makes its outcome visible in the lake or in the
broker, and then Spark writes down that it is done."""


class Kill(NamedTuple):
    victim: str
    moment: str
    delay: float
    """How many seconds after the moment."""


def kills(chance: random.Random) -> Iterator[Kill]:
    """Kills without end: each victim once in three, and for each victim all of its moments in turn."""
    moments = {victim: chance.sample(list(moments), k=len(moments)) for victim, moments in MOMENTS.items()}
    while True:
        for victim in chance.sample(list(VICTIMS), k=len(VICTIMS)):
            moments[victim].append(moment := moments[victim].pop(0))
            yield Kill(victim, moment, _delay(moment, chance))


def _delay(moment: str, chance: random.Random) -> float:
    if moment == "any time":
        return chance.uniform(0.5, 8.0)
    # What is between two commits takes some hundredths of a second.
    return chance.choice((0.0, chance.uniform(0.0, 0.05), chance.uniform(0.0, 1.0)))
