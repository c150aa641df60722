"""How often a password may be tried, by address and by user, so that guessing takes for ever and hashing costs little.

1. Failures are counted. An address that has failed `BY_ADDRESS` times within `WINDOW` seconds is refused unheard, until
   the oldest of these is as old. A user may be tried from many addresses: after `BY_USER` failures nobody is heard.
2. A user who has come in from an address before is counted there by himself: neither those who guess at him from
   elsewhere lock him out, nor those who guess at others from the same address.
3. A password that has come in from an address is recognised there without hashing: who calls often, and says it each
   time, does not wait behind strangers.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from hmac import compare_digest
from time import monotonic
from typing import Final

WINDOW: Final = 60.0
BY_ADDRESS: Final = 10
BY_USER: Final = 50
REMEMBERED: Final = 10_000  # addresses, users, and pairs of them

_Key = tuple[str, str, str]


class Attempts:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[_Key, deque[float]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()  # what has come in

    def allowed(self, address: str, user: str) -> bool:
        """Whether another attempt is heard."""
        if (address, user) in self._known:
            return self._count(("pair", address, user)) < BY_ADDRESS
        return (
            self._count(("address", address, "")) < BY_ADDRESS and self._count(("user", user, "")) < BY_USER
        )

    def is_known(self, address: str, user: str, proof: bytes) -> bool:
        """Whether the user has come in from this address with what the proof is made of. Ask only where an attempt is
        allowed, and count one that is not known."""
        return compare_digest(self._known.get((address, user), b""), proof)

    def begun(self, address: str, user: str) -> None:
        """An attempt is made, which is taken for a failure until it has succeeded: else as many as can be made at once
        would be heard."""
        for key in self._keys(address, user):
            times = self._failures.setdefault(key, deque(maxlen=BY_USER))
            times.append(self._clock())
            self._failures.move_to_end(key)
        while len(self._failures) > 3 * REMEMBERED:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, user: str, proof: bytes = b"") -> None:
        """The attempt that was taken for a failure was none."""
        for key in self._keys(address, user):
            if times := self._failures.get(key):
                times.pop()
        self._known[address, user] = proof
        self._known.move_to_end((address, user))
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _keys(self, address: str, user: str) -> tuple[_Key, ...]:
        return ("address", address, ""), ("user", user, ""), ("pair", address, user)

    def _count(self, key: _Key) -> int:
        times = self._failures.get(key)
        if times is None:
            return 0
        while times and times[0] <= self._clock() - WINDOW:
            times.popleft()
        return len(times)
