"""Work on many topics, in portions: others get their turn of the loop between two of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

PORTION = 1000  # topics looked at in one turn of the loop
FEW = 100  # with more, whatever comes next has a turn of its own


async def in_portions(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, a portion of them in each turn. What they come from must not change meanwhile."""
    number = 0
    for item in items:
        yield item
        number += 1
        if number == PORTION:
            number = 0
            await asyncio.sleep(0)
    if number > FEW:
        await asyncio.sleep(0)


class Portions:
    """Work on topics, several pieces of it in turn, a portion each. A step of it looks at one topic at most.

    `later` is given the next turn: it calls it soon, or as soon as what was changed before is out of the way.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._work: deque[Iterator[object]] = deque()
        self._left = PORTION  # steps, in this turn
        self._waiting = False  # for the next turn
        self._working = False

    def __len__(self) -> int:
        """How many pieces are not done."""
        return len(self._work)

    def do(self, steps: Iterator[object]) -> None:
        """As much as this turn has left is done at once."""
        self._work.append(steps)
        self._go_on()

    def _go_on(self) -> None:
        try:
            while self._work and self._left > 0 and not self._working:
                self._portion()
        finally:
            if not self._waiting:
                self._waiting = True
                self._later(self._turn)

    def _portion(self) -> None:
        self._working = True  # a step may have more to be done
        try:
            left = self._left
            taken = sum(1 for _ in islice(self._work[0], left))
            self._left -= max(taken, 1)  # also what has no steps is some work
            if taken < left:
                self._work.popleft()
            else:
                self._work.rotate(-1)  # who has little to do does not wait for all of who has much
        finally:
            self._working = False

    def _turn(self) -> None:
        self._waiting = False
        self._left = PORTION
        if self._work:
            self._go_on()
