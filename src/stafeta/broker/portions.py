"""Work on many topics, in portions: others get their turn of the loop between two of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
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
    """Work on topics, several pieces of it in turn, a portion each. A step of it looks at one topic at most."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: deque[Iterator[object]] = deque()
        self._left = PORTION  # steps, in this turn
        self._next: asyncio.Handle | None = None  # the next turn
        self._working = False

    def do(self, steps: Iterator[object]) -> None:
        """As much as this turn has left is done at once."""
        self._work.append(steps)
        self._go_on()

    def _go_on(self) -> None:
        if self._next is None:
            self._next = self._loop.call_soon(self._turn)
        while self._work and self._left > 0 and not self._working:
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
        self._next = None
        self._left = PORTION
        if self._work:
            self._go_on()
