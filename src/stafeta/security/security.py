"""Users and permissions while a broker runs: who comes in, as whom, and what he may do.

1. Where no users are configured nobody is asked, and nothing is checked.
2. What is known of users is read at the start and at SIGHUP. Each change has a number, the generation, by which those
   who hold a decision see that it may not be good any more; `on_change` calls those who have to end something.
3. A token that expires is a change, too.
"""

import asyncio
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stafeta.errors import NotAuthenticated
from stafeta.logs import fields
from stafeta.security.attempts import Attempts
from stafeta.security.passwords import LONGEST, Verifier
from stafeta.security.permissions import Permissions, Remembered
from stafeta.security.principal import ANYONE, Principal
from stafeta.security.rules import WORDS, RuleTrie
from stafeta.security.users import User, Users, hash_token

log = logging.getLogger("stafeta.security")

LONGEST_TOKEN: Final = 512  # characters
LONGEST_WAIT: Final = 3600.0  # seconds until it is looked again whether a token has expired
UNKNOWN: Final = "The user is unknown, or the password is wrong."  # which of the two is nobody's business


class Security:
    """`filters` says what becomes of a filter that reaches further than is allowed: cut, or refuse."""

    def __init__(self, users: Users | None = None, filters: str = "cut", used: Path | None = None) -> None:
        self.generation = 0
        self.whole_filters = filters == "refuse"
        self._users: Users | None = None
        self._verifier = Verifier()
        self._attempts = Attempts()
        self._listeners: dict[Callable[[], None], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._used_path = used
        self._used: dict[str, float] = {}  # when tokens were used last
        self._used_saved: dict[str, float] = {}
        self.failures: Counter[str] = Counter()  # of those who wanted to come in, by door
        self.refusals: Counter[str] = Counter()  # of what somebody wanted to do, by door
        self.observer: Callable[..., None] = lambda event, **details: None
        self._take(users)

    # --- what is known

    @property
    def configured(self) -> bool:
        return self._users is not None

    @property
    def users(self) -> Users:
        return self._users or Users()

    def _take(self, users: Users | None) -> None:
        self._users = users
        known = self.users
        self._remembered = Remembered()
        self._permissions: dict[str, Permissions] = {}
        self._roles = {name: RuleTrie(role.allow, role.deny) for name, role in known.roles.items()}
        self._tokens = {token.hash: name for name, token in known.tokens.items()}
        self._curve = {key: name for name, user in known.users.items() for key in user.curve_keys}
        self._plain = next((name for name, user in known.users.items() if user.plain_names), None)
        self.generation += 1

    def replace(self, users: Users | None) -> None:
        """Take over what a file says now. Whoever may no longer do what he is doing is stopped."""
        before = self.users
        self._take(users)
        for what in ("users", "roles", "tokens", "doors"):
            old, new = getattr(before, what), getattr(self.users, what)
            for name in sorted(name for name in {*old, *new} if old.get(name) != new.get(name)):
                change = "added" if name not in old else "removed" if name not in new else "changed"
                self.observer("users changed", what=f"{what.removesuffix('s')} {name} {change}")
        self._changed()

    def _changed(self) -> None:
        self._watch_expiry()
        for listener in list(self._listeners):
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call it whenever somebody may have lost something."""
        self._listeners[listener] = None

    def forget_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def start(self) -> None:
        """Call on the loop: tokens expire from now on also for those who are connected."""
        self._loop = asyncio.get_running_loop()
        self._watch_expiry()

    def _watch_expiry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            return
        now = time.time()
        coming = [
            token.expires.timestamp() - now
            for token in self.users.tokens.values()
            if token.expires is not None
        ]
        coming = [seconds for seconds in coming if seconds > 0]
        if coming:
            wait = min(min(coming) + 0.01, LONGEST_WAIT)
            self._timer = self._loop.call_later(wait, self._expired)

    def _expired(self) -> None:
        self.generation += 1
        self._changed()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._verifier.close()
        self.save_use()

    # --- who comes in

    async def authenticate(
        self,
        *,
        door: str,
        address: str,
        client: str = "",
        password: tuple[str, str] | None = None,
        token: str | None = None,
        certificate_name: str | None = None,
        curve_key: str | None = None,
    ) -> Principal:
        """Who comes in with a user's name and password, a token, a certificate (its name, which the door has
        verified), a CURVE key (the public one), or nothing. Raises `NotAuthenticated`."""
        if password is None:
            return self.identify(
                door=door,
                address=address,
                client=client,
                token=token,
                certificate_name=certificate_name,
                curve_key=curve_key,
            )
        if self._users is None:
            return ANYONE
        name, secret = password
        try:
            await self._verify(name, secret, _host(address))
        except NotAuthenticated as error:
            self._refused(door, address, error, name if name in self.users.users else "")
            raise
        return self._admitted(Principal(name, client, door, address, self._password(name)))

    async def _verify(self, name: str, secret: str, host: str) -> None:
        if len(secret) > LONGEST or len(name) > LONGEST:
            raise NotAuthenticated(UNKNOWN)
        if not self._attempts.allowed(host, name):
            raise NotAuthenticated("Too many attempts have failed. Try again in a minute.")
        self._attempts.begun(host, name)
        user = self.users.users.get(name, User())
        if not await self._verifier.verify(user.password, secret) or name not in self.users.users:
            raise NotAuthenticated(UNKNOWN)
        self._attempts.succeeded(host, name)

    def _password(self, user: str) -> str:
        """What says that somebody came in by the password that the user has now."""
        known = self.users.users.get(user, User())
        return f"password {hash_token(known.password)[:16]}"

    def identify(
        self,
        *,
        door: str,
        address: str,
        client: str = "",
        token: str | None = None,
        certificate_name: str | None = None,
        curve_key: str | None = None,
    ) -> Principal:
        """The same for what takes no time."""
        if self._users is None:
            return ANYONE
        try:
            found = self._identify(door, token, certificate_name, curve_key)
        except NotAuthenticated as error:
            self._refused(door, address, error)
            raise
        return self._admitted(Principal(found.user, client, door, address, found.credential, found.expires))

    def _identify(
        self, door: str, token: str | None, certificate_name: str | None, curve_key: str | None
    ) -> Principal:
        users = self.users
        if token is not None:
            name = self._tokens.get(hash_token(token)) if len(token) <= LONGEST_TOKEN else None
            if name is None:
                raise NotAuthenticated("The token is unknown, or was revoked.")
            known = users.tokens[name]
            expires = 0.0 if known.expires is None else known.expires.timestamp()
            if expires and expires <= time.time():
                raise NotAuthenticated("The token has expired.")
            self._used[name] = time.time()
            return Principal(known.user, credential=f"token {name}", expires=expires)
        if certificate_name is not None:
            if certificate_name not in users.users:
                raise NotAuthenticated("There is no user of the certificate's name.")
            return Principal(certificate_name, credential="certificate")
        if curve_key is not None:
            owner = self._curve.get(curve_key)
            if owner is None:
                raise NotAuthenticated("The key is no user's.")
            return Principal(owner, credential=f"curve {curve_key}")
        default = users.doors.get(door)
        if default is None:
            raise NotAuthenticated("Nobody comes in here without a user, a token, a key or a certificate.")
        return Principal(default, credential="door")

    def _admitted(self, principal: Principal) -> Principal:
        self.observer(
            "login",
            user=principal.user,
            door=principal.door,
            address=principal.address,
            credential=principal.credential.partition(" ")[0],
        )
        return principal

    def _refused(self, door: str, address: str, error: NotAuthenticated, user: str = "") -> None:
        self.failures[door] += 1
        self.observer("refused login", user=user, door=door, address=address, why=str(error))

    def observe_refusal(self, principal: Principal, operation: int, name: str, count: int = 1) -> None:
        """Somebody was told that he may not."""
        self.refusals[principal.door] += count
        self.observer(
            "refused",
            user=principal.user,
            door=principal.door,
            address=principal.address,
            operation=next((word for bit, word in WORDS.items() if bit & operation), ""),
            topic=name[:300],
            **({"count": count} if count > 1 else {}),
        )

    def check(self, principal: Principal) -> None:
        """Raises `NotAuthenticated` where who came in would not be let in any more."""
        if self._users is None:
            return
        users = self.users
        kind, _, name = principal.credential.partition(" ")
        user = users.users.get(principal.user)
        if user is None:
            raise NotAuthenticated(f"There is no user {principal.user!r} any more.")
        if kind == "token" and (name not in users.tokens or users.tokens[name].user != principal.user):
            raise NotAuthenticated("The token was revoked.")
        if principal.expires and principal.expires <= time.time():
            raise NotAuthenticated("The token has expired.")
        if kind == "curve" and name not in user.curve_keys:
            raise NotAuthenticated("The key is not the user's any more.")
        if kind == "password" and principal.credential != self._password(principal.user):
            raise NotAuthenticated("The user's password was changed.")
        if kind == "door" and users.doors.get(principal.door) != principal.user:
            raise NotAuthenticated(
                f"Nobody comes in as {principal.user!r} here without credentials any more."
            )

    def alive(self, principal: Principal) -> bool:
        try:
            self.check(principal)
        except NotAuthenticated:
            return False
        return True

    # --- what he may do

    def permissions(self, user: str) -> Permissions:
        """Those of a user, who may have gone: then there are none. Good for one generation."""
        found = self._permissions.get(user)
        if found is None:
            known = self.users.users.get(user, User())
            tries = [self._roles[role] for role in known.roles if role in self._roles]
            tries.append(RuleTrie(known.allow, known.deny))
            found = Permissions(user, tries, self._remembered, pipeline=known.pipeline)
            if user in self.users.users:
                self._permissions[user] = found
        return found

    @property
    def plain_user(self) -> str | None:
        """Whose the durable names are that have no user in them."""
        return self._plain

    # --- when tokens were used

    def save_use(self) -> None:
        """Write down when tokens were used last: now and then, and not for each request."""
        if self._used_path is None or self._used == self._used_saved:
            return
        self._used_saved = dict(self._used)
        known = load_use(self._used_path) | self._used
        kept = {name: when for name, when in known.items() if name in self.users.tokens}
        beside = self._used_path.with_name(f"{self._used_path.name}.new")
        try:
            with open(
                os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
            ) as file:
                json.dump(kept, file)
            os.replace(beside, self._used_path)
        except OSError as error:
            log.warning("when tokens were used cannot be written", extra=fields(why=error.strerror))


def used_path(users: Path) -> Path:
    """Beside the users' file: when tokens were used last."""
    return users.with_name(f"{users.name}.used")


def load_use(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: float(when) for name, when in found.items()} if isinstance(found, dict) else {}


def new_token() -> str:
    return "stf_" + secrets.token_urlsafe(32)


def _host(address: str) -> str:
    """An address without its port: a stranger has many of those."""
    return address.rpartition(":")[0] or address
