"""Sensors whose readings go through a client that repeats what was not confirmed, to be killed. Run as a program by
tests of what is killed.

python -m tests.pipeline.killed_producer BROKER RATE LATER STOP

publishes numbered readings as `tests.pipeline.soak_producer` does its messages, all of them above 30 degrees.
"""

import sys
from pathlib import Path

from tests.pipeline.soak_producer import produce

TOPICS = ("upb/hall/temperature", "upb/roof/temperature")
_COLD = 30


def reading(topic: str, number: int) -> str:
    """What a topic's reading of this number is, in degrees Celsius."""
    return str(_COLD + number)


def number_of(celsius: float) -> int:
    """The number of a reading; raises ValueError where it is none."""
    number = round(celsius) - _COLD
    if abs(celsius - _COLD - number) > 0.01:
        raise ValueError(celsius)
    return number


def main(address: str, rate: str, later: str, stop: str) -> None:
    produce(address, int(rate), int(later), Path(stop), TOPICS, reading, "float")


if __name__ == "__main__":
    main(*sys.argv[1:])
