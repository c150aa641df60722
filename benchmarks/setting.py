"""What every benchmark is given."""

import sys
from pathlib import Path
from typing import NamedTuple, TypeVar

PAYLOAD = 100  # bytes of each message

_T = TypeVar("_T")


class Setting(NamedTuple):
    name: str
    folder: Path  # empty, on the disk that is measured
    quick: bool
    total: int | None = None  # of the rows that are measured, where it was said

    def sized(self, full: _T, quick: _T) -> _T:
        """How much of something: in earnest, or only to see that it works."""
        return quick if self.quick else full

    def rows(self, full: int, quick: int) -> int:
        """How many rows: as many as was said, or else as `sized` has it."""
        return self.total or self.sized(full, quick)

    def say(self, what: str) -> None:
        """Tells whoever waits what is being done."""
        print(f"{self.name}: {what}", file=sys.stderr, flush=True)
