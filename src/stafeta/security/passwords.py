"""Passwords as Argon2id hashes, made and verified in a small pool of threads of their own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final

from stafeta.errors import ConfigError, NotAuthenticated

if TYPE_CHECKING:
    from argon2 import PasswordHasher

LONGEST: Final = 1024  # bytes of a password
SHORTEST: Final = 8  # characters
THREADS: Final = 2
WAITING: Final = 32  # passwords that wait to be verified
_UNKNOWN: Final = "\x00 nobody's password"


@cache
def _hasher() -> "PasswordHasher":
    from argon2 import PasswordHasher

    # 19 MiB and two passes, as OWASP has it: a thread for each, and not four as RFC 9106 has it.
    return PasswordHasher(time_cost=2, memory_cost=19 << 10, parallelism=1)


@cache
def _unknown_hash() -> str:
    return hash_password(_UNKNOWN)


def hash_password(password: str) -> str:
    return _hasher().hash(password.encode(errors="surrogatepass"))


def check_new(password: str) -> None:
    """Refuses what cannot be a password."""
    if len(password) < SHORTEST:
        raise ConfigError(f"A password has at least {SHORTEST} characters.")
    if len(password.encode(errors="surrogatepass")) > LONGEST:
        raise ConfigError(f"A password has at most {LONGEST} bytes.")


def verify(known: str, password: str) -> bool:
    """Whether the hash is this password's. Without a hash it takes as long, and is not."""
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        _hasher().verify(known or _unknown_hash(), password.encode(errors="surrogatepass"))
        return bool(known)
    except (Argon2Error, InvalidHashError):
        return False


class Verifier:
    """Verifies off the loop, a few at a time."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def verify(self, known: str, password: str) -> bool:
        if self._waiting >= WAITING:
            raise NotAuthenticated("The broker has too many passwords to verify just now. Try again later.")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, verify, known, password)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
