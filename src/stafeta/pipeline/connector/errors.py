"""How an error reaches Spark's user: as its sentence."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from stafeta.errors import StafetaError

_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def translating_errors() -> Generator[None]:
    """An error of Stafeta's that leaves this has no traceback around it in Spark: its sentence says what to do.

    Spark looks at this variable when it hands the error on, and ends the process then, so nothing else is changed.
    """
    try:
        yield
    except StafetaError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def plain_errors(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same for all of a method."""

    @wraps(method)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with translating_errors():
            return method(*args, **kwargs)

    return wrapped


def each_plain(rows: Iterator[_T]) -> Iterator[_T]:
    """The same for what is made while it is gone through."""
    with translating_errors():
        yield from rows
