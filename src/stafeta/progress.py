"""How far a command has come: a bar on standard error, where that is a terminal."""

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_INTERVAL: Final = 0.1  # seconds between two drawings
_WIDTH: Final = 30


class Progress:
    """Counts what was sent, and draws it, if `shown`. `fraction` tells how much of all that is, or None where nobody
    knows."""

    def __init__(self, fraction: Callable[[int], float | None], what: str = "sent") -> None:
        self.sent = 0
        self._what = what
        self._fraction = fraction
        self.shown = sys.stderr.isatty()
        self._begin = self._drawn = time.monotonic()
        self._length = 0

    def advance(self, count: int = 1) -> None:
        self.sent += count
        if self.shown and time.monotonic() - self._drawn >= _INTERVAL:
            self._draw()

    def say(self, sentence: str) -> None:
        """Prints a line on standard error, above the bar."""
        if self._length:
            self._write("", "\r")
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._length:
            self._draw()
            sys.stderr.write("\n")

    def _draw(self) -> None:
        self._drawn = now = time.monotonic()
        line = f"{self.sent:,} {self._what}, {self.sent / max(now - self._begin, 0.001):,.0f}/s"
        fraction = self._fraction(self.sent)
        if fraction is not None:
            line = f"[{'#' * int(fraction * _WIDTH):-<{_WIDTH}}] {fraction:4.0%}  {line}"
        self._write(line[: shutil.get_terminal_size().columns - 1], "")

    def _write(self, line: str, end: str) -> None:
        sys.stderr.write(f"\r{line:<{self._length}}{end}")
        sys.stderr.flush()
        self._length = len(line)
