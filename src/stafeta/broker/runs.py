"""Which brokers have written the log, one after the other, so that a reader notices where it is another log.

1. A run is the life of one broker. Its id is drawn at random, and stored, with the position at which it began, in the
   commit of its first messages.
2. A reader remembers a mark: a position that it knows the log up to, and the run that wrote the message there. A log
   that has the run in its history, and the position before the end of that run, has all that the reader has seen. Any
   other has lost something: a backup was restored, the disk replaced, or power was lost while nothing was synced.
3. A mark also says which run came before, and where its own began: of messages that are older than all runs, the first
   run alone is known.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from reprlib import repr as shown
from secrets import token_hex
from typing import Final

from stafeta.errors import DataLoss, InvalidRequest

_MARK: Final = re.compile(r"([0-9a-f]{0,32})\.([0-9]{1,19})\.([0-9a-f]{1,32})\.([0-9]{1,19})")


class Runs:
    """The runs that are `stored`, each with where it began, and the one that begins now at the position `start`."""

    def __init__(self, stored: Iterable[tuple[int, str]], start: int) -> None:
        self.current = start, token_hex(8)
        self._known = [(0, ""), *sorted(stored), self.current]
        self._starts = [start for start, _ in self._known]
        self._ends = {run: end for (_, run), (end, _) in pairwise(self._known)}

    def mark(self, position: int) -> str:
        """What a reader has to remember who knows of the messages up to this position."""
        at = max(1, bisect_right(self._starts, position) - 1)
        (_, before), (start, run) = self._known[at - 1 : at + 1]
        return f"{before}.{start}.{run}.{position}"

    def check(self, mark: str) -> None:
        """Raises `DataLoss` where messages are not there any more that the reader knows of."""
        found = _MARK.fullmatch(mark)
        if found is None:
            raise InvalidRequest(f"{shown(mark)} is no mark; send one as it came, or leave it out.")
        before, run = found[1], found[3]
        start, position = int(found[2]), int(found[4])
        if run == self.current[1]:
            return
        if run not in self._ends and position < start:
            run = before
        if position >= self._ends.get(run, 0):
            raise DataLoss(
                "The broker has lost messages that it had given out, and its log goes on with others in their place: a "
                "backup was restored, a disk replaced, or power lost."
            )
