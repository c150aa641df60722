"""Who is killed, in which order, and when: all of it follows from a seed."""

import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

# The first ones come also where there are few kills: those that hurt most.
MOMENTS: Final[dict[str, Sequence[str]]] = {
    "driver": ("visible", "planned", "visible", "done", "any time"),
    "worker": ("busy", "any time"),
    "broker": ("planned", "any time", "visible"),
    "producer": ("any time",),
}
TOLD: Final = {
    "planned": "as Spark had planned a micro-batch",
    "visible": "as a micro-batch became visible",
    "done": "as Spark had committed a micro-batch",
    "busy": "while it spoke with the broker",
    "any time": "at any time",
}
"""Spark writes down what a micro-batch holds, the tasks stage it, the sink's commit makes it visible, and then Spark
writes down that it is done."""

_LEAST = 3


class Kill(NamedTuple):
    victim: str
    moment: str
    delay: float
    """How many seconds after the moment."""


def planned(kills: int, chance: random.Random) -> list[Kill]:
    """So many kills, of each victim at least three, or as many as can be had."""
    least = min(_LEAST, kills // len(MOMENTS))
    victims = [victim for victim in MOMENTS for _ in range(least)]
    victims += chance.choices(list(MOMENTS), k=kills - len(victims))
    found = [
        Kill(victim, moment, _delay(victim, moment, chance))
        for victim, moments in MOMENTS.items()
        for moment in islice(cycle(moments), victims.count(victim))
    ]
    chance.shuffle(found)
    return found


def _delay(victim: str, moment: str, chance: random.Random) -> float:
    if moment == "any time":
        return chance.uniform(0.2, 2.5)
    if victim == "driver" and moment == "visible":
        return 0.0  # between the sink's commit and Spark's own are some hundredths of a second
    return chance.choice((0.0, chance.uniform(0.0, 0.02), chance.uniform(0.0, 0.5)))
