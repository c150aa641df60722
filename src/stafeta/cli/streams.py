"""Standard output, and what can go wrong with it.

1. Whatever cannot be written raises `Unwritable`, wherever it was printed: the command ends, and `main` says why.
2. A stream that was closed before the program began keeps its number: no file that is opened later gets it, and what
   was meant for a person with it.
"""

import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Unwritable(Exception):
    """Standard output cannot be written. Neither an OSError nor an error of Stafeta's: nobody else is to catch it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"The output cannot be written: {error.strerror}.")
        self.nobody_reads = isinstance(error, BrokenPipeError)


class _Output(io.FileIO):
    def write(self, data: "ReadableBuffer", /) -> int:
        return write_some(1, data)


class _AtOnce(io.BufferedWriter):
    """Holds nothing back: `python -u`, or PYTHONUNBUFFERED, which containers have."""

    def write(self, data: "ReadableBuffer", /) -> int:
        written = super().write(data)
        self.flush()
        return written


def write_some(descriptor: int, data: "ReadableBuffer") -> int:
    """Writes what the descriptor takes, and waits until it takes something; returns how many bytes that was."""
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # whoever started the program has made it so
            select.select([], [descriptor], [])
        except OSError as error:
            raise Unwritable(error) from None


def prepare() -> None:
    """Call before anything is opened."""
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        _fill(number, mode)  # a mode in which 0 and 1 fail when they are used
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    before = sys.stdout
    if before is None:
        sys.stdout = _text("utf-8", "surrogateescape")
    elif before is sys.__stdout__ and isinstance(before, io.TextIOWrapper):  # not what a test has put there
        sys.stdout = _text(before.encoding, before.errors, before.line_buffering, before.write_through)


def abandon(descriptor: int = 1) -> None:
    """What is still buffered would fail again when Python leaves, with a traceback, or with an exit code of its own."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)


def settle_errors() -> None:
    """Call at the end: what standard error does not take is let go."""
    try:
        sys.stderr.flush()
    except OSError:
        abandon(2)


def _fill(number: int, mode: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, mode), True)  # it gets the lowest number that is free


def _text(
    encoding: str, errors: str | None, by_lines: bool = False, at_once: bool = False
) -> io.TextIOWrapper:
    raw = _Output(1, "w", closefd=False)
    buffer = _AtOnce(raw) if at_once else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding, errors, line_buffering=by_lines, write_through=at_once)
