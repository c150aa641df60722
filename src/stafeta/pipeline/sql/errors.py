"""What Spark says of a statement, in a sentence: with the place, and without the plan and the stack trace."""

import re
from typing import Final

from stafeta.errors import InvalidQuery, StafetaError
from stafeta.pipeline.runner.failures import failure_of

_PREFIX: Final = re.compile(r"^Line \d+, position \d+: ")
_PLACES: Final = (
    (re.compile(r"\bline (\d+),? pos (\d+)"), 0),  # counts from 0
    (re.compile(r"\bline (\d+), position (\d+)"), 1),
)


def translated(error: Exception, statement: str) -> StafetaError:
    """What to tell of an error that a statement ended with."""
    failure = failure_of(error)
    if failure.error is not None:
        return failure.error
    sentence = _PREFIX.sub("", failure.sentence)
    place = _place(str(error), statement)
    if place is None:
        return InvalidQuery(sentence)
    line, column = place
    shown = statement.splitlines()[line - 1].replace("\t", " ")
    return InvalidQuery(f"{sentence} (line {line}, column {column})\n  {shown}\n  {'^':>{column}}")


def _place(text: str, statement: str) -> tuple[int, int] | None:
    """Line and column, from 1 on, if it is one of the statement's."""
    lines = statement.splitlines()
    for pattern, first in _PLACES:
        if found := pattern.search(text):
            line, column = int(found[1]), int(found[2]) + 1 - first
            if line <= len(lines) and column <= len(lines[line - 1]) + 1:
                return line, column
    return None
