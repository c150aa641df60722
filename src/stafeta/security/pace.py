"""How much a client, which is a user at one address, may ask for and send in a second.

1. Requests and bytes are counted as they come, and only once the second's share is used up is the clock looked at: then
   it is known how much has become free since. A client that was silent may use one second's share at once.
   Threads of several calls may count at once: where two do so in the same instant, one of them may be missed.
2. A door whose protocol has an answer refuses what is too much (`check`); others take it, and read no further until it
   is paid for (`wait`).
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

from stafeta.addresses import network_of
from stafeta.errors import RateLimited
from stafeta.logs import SeldomLog
from stafeta.security.principal import Principal

REMEMBERED: Final = 10_000  # clients

Rates = Callable[[], tuple[float, float]]
"""Requests and bytes a second, as they are configured now."""


class Pace:
    __slots__ = ("_bytes", "_clock", "_filled", "_of", "_rates", "_report", "_requests")

    def __init__(
        self,
        rates: Rates,
        of: Principal,
        report: Callable[[Principal], None] = lambda of: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._rates = rates
        self._of = of
        self._report = report
        self._clock = clock
        self._requests, self._bytes = rates()
        self._filled = clock()

    def check(self, size: int) -> None:
        """Count a request of so many bytes; raises `RateLimited`, and counts nothing, where it is too much."""
        if (self._requests <= 0 or self._bytes <= 0) and (wait := self._fill()):
            self._report(self._of)
            raise RateLimited(
                f"User {self._of.user!r} asks for more in a second than limits.max_client_requests or "
                f"limits.max_client_bytes allows. Try again in {wait:.3f} s."
            )
        self._requests -= 1
        self._bytes -= size

    def allows(self, size: int) -> bool:
        """The same for who is told nothing."""
        try:
            self.check(size)
        except RateLimited:
            return False
        return True

    def wait(self, size: int, requests: int = 1) -> float:
        """Count these, which were taken; returns for how many seconds nothing more is to be."""
        self._requests -= requests
        self._bytes -= size
        if self._requests >= 0 and self._bytes >= 0:
            return 0.0
        wait = self._fill()
        if wait:
            self._report(self._of)
        return wait

    def _fill(self) -> float:
        now = self._clock()
        requests, size = self._rates()
        passed, self._filled = now - self._filled, now
        self._requests = min(self._requests + passed * requests, requests)
        self._bytes = min(self._bytes + passed * size, size)
        return max(-self._requests / requests, -self._bytes / size, 0.0)


class Paces:
    """Those of all clients, of which the longest silent are forgotten."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._paces: OrderedDict[tuple[str, str], Pace] = OrderedDict()
        self._log = SeldomLog(logging.getLogger("stafeta.security"))

    def of(self, principal: Principal) -> Pace:
        key = principal.user, network_of(principal.address)
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = Pace(self._rates, principal, self._report)
            if len(self._paces) > REMEMBERED:
                self._paces.popitem(last=False)
        else:
            self._paces.move_to_end(key)
        return pace

    def _report(self, of: Principal) -> None:
        self._log.warning(
            "a client is slowed down: it asks for more than limits.max_client_requests or limits.max_client_bytes "
            "allows",
            user=of.user,
            door=of.door,
            address=of.address,
        )
