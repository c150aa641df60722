"""The broker's marks (`stafeta.broker.runs`), by which its log is known again as the one that was archived.

The lake has one, of the last message in it by position: a log that it is of has all that is in the lake.
"""

from collections.abc import Iterable
from typing import Final

LOG: Final = "stafeta.log"
"""The property of `messages` that has it. A lake of earlier versions has none until something is archived."""


def latest(marks: Iterable[str]) -> str:
    """Of the marks of one log, that of the highest position; none, an empty text, is below all."""
    return max(marks, key=lambda mark: int(mark.rpartition(".")[2] or -1), default="")
