"""What a person types, or a program writes, on standard input: lines, read as they come.

Not through Python's own buffer: `select` knows nothing of what waits there, and its lock would still be held, when the
program ends, by a thread that waits for input.
"""

import os
import sys
from typing import Final

_BLOCK: Final = 64 * 1024


class Typed:
    """Standard input, as lines of words."""

    def __init__(self) -> None:
        # Where the program was started without one, the number belongs to something else.
        self.descriptor: int | None = None if sys.stdin is None else sys.stdin.fileno()
        self._begun = b""

    def read(self) -> list[list[str]]:
        """The lines that have come, each as its words. Waits for some, unless `select` says there are.
        `descriptor` is None once the input has ended."""
        assert self.descriptor is not None
        try:
            typed = os.read(self.descriptor, _BLOCK)
        except BlockingIOError:
            return []
        except OSError:
            typed = b""  # its terminal is gone
        *lines, self._begun = (self._begun + typed).split(b"\n")
        if not typed:
            lines, self._begun, self.descriptor = [self._begun], b"", None
        return [line.decode(errors="surrogateescape").split() for line in lines]
