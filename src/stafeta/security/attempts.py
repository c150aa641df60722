"""How often a password may be tried, by address and by user, so that guessing takes for ever and hashing costs little.

1. Failures are counted. An address that has failed `BY_ADDRESS` times within `WINDOW` seconds is refused unheard, until
   the oldest of these is as old.
2. A user may be tried from many addresses: after `BY_USER` failures only addresses are heard from which this user has
   come in before. So a stranger who guesses does not lock the user out.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic
from typing import Final

WINDOW: Final = 60.0
BY_ADDRESS: Final = 10
BY_USER: Final = 50
REMEMBERED: Final = 10_000  # addresses and users, and pairs of them


class Attempts:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def allowed(self, address: str, user: str) -> bool:
        """Whether another attempt is heard."""
        if self._count("address", address) >= BY_ADDRESS:
            return False
        return self._count("user", user) < BY_USER or (address, user) in self._known

    def begun(self, address: str, user: str) -> None:
        """An attempt is made, which is taken for a failure until it has succeeded: else as many as can be made at once
        would be heard."""
        for key in (("address", address), ("user", user)):
            times = self._failures.setdefault(key, deque(maxlen=BY_USER))
            times.append(self._clock())
            self._failures.move_to_end(key)
        while len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, user: str) -> None:
        """The attempt that was taken for a failure was none."""
        for key in (("address", address), ("user", user)):
            if times := self._failures.get(key):
                times.pop()
        self._known[address, user] = None
        self._known.move_to_end((address, user))
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _count(self, what: str, name: str) -> int:
        times = self._failures.get((what, name))
        if times is None:
            return 0
        while times and times[0] <= self._clock() - WINDOW:
            times.popleft()
        return len(times)
