"""Who has logged in: the sessions of the page, and credentials that were checked a moment ago.

1. A session is a random word in a cookie that scripts cannot read. The broker knows its hash alone, and for so long.
2. There are at most so many, of a user and of all; the oldest goes for a new one.
3. Whoever would not be let in any more has no session: that is asked each time, of the broker's security.
4. A password takes 50 ms to check, and each login is an event of the audit: who comes again with the same credentials
   from the same address within some minutes is the one who was checked then.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from stafeta.security import Principal, Security

COOKIE: Final = "stafeta_session"
MAX_SESSIONS: Final = 10_000
MAX_OF_USER: Final = 100
MAX_REMEMBERED: Final = 10_000
REMEMBERED: Final = 300.0  # seconds


class _Session(NamedTuple):
    principal: Principal
    expires: float


class Logins:
    def __init__(self, security: Security, lasts: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lasts = lasts
        self._security = security
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # the oldest first
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal) -> str:
        """Begins a session; returns what the cookie holds."""
        self._drop_expired()
        mine = [key for key, one in self._sessions.items() if one.principal.user == principal.user]
        for key in mine[: len(mine) - MAX_OF_USER + 1] if len(mine) >= MAX_OF_USER else ():
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        word = secrets.token_urlsafe(32)
        self._sessions[_hash(word)] = _Session(principal, self._clock() + self.lasts)
        return word

    def find(self, word: str) -> Principal | None:
        found = self._sessions.get(_hash(word))
        if found is None or found.expires <= self._clock():
            return None
        return found.principal

    def close(self, word: str) -> None:
        self._sessions.pop(_hash(word), None)

    def drop_dead(self) -> None:
        """Users have changed: forget whoever would not be let in any more."""
        for known in (self._sessions, self._known):
            for key in [key for key, one in known.items() if not self._security.alive(one.principal)]:
                del known[key]

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._sessions and next(iter(self._sessions.values())).expires <= now:
            self._sessions.popitem(last=False)

    # --- credentials that came a moment ago

    def remembered(self, header: str, host: str) -> Principal | None:
        found = self._known.get(self._key(header, host))
        if found is None or found.expires <= self._clock():
            return None
        return found.principal

    def remember(self, header: str, host: str, principal: Principal) -> None:
        self._known[self._key(header, host)] = _Session(principal, self._clock() + REMEMBERED)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def _key(self, header: str, host: str) -> bytes:
        """What stands for them, without a secret in it."""
        return hmac.digest(self._secret, f"{host}\n{header}".encode(), "sha256")


def _hash(word: str) -> bytes:
    return hashlib.sha256(word.encode(errors="replace")).digest()
