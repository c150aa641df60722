"""The users' file: who there is, how each is recognised, and what each may do. (docs/security.md)

1. A file that is missing, empty, wrong, or that others can read is refused; it never means that everyone may do
   everything.
2. A mistake is said with the line that it is on.
3. It is written whole, beside the old one, and takes its place at once.
"""

import fcntl
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from stafeta.errors import ConfigError
from stafeta.security.rules import Rule

MAX_SIZE: Final = 256 << 20  # bytes of the file
DOORS: Final = ("zeromq", "devices", "frames", "flight", "http")
NAME: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.-]{0,63}", re.ASCII)
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_CURVE: Final = re.compile(r"[!-~]{40}")


@dataclass(frozen=True, slots=True)
class Role:
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    password: str = ""  # its hash; empty: this user has none
    roles: tuple[str, ...] = ()
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    curve_keys: tuple[str, ...] = ()  # public ones, as ZeroMQ writes them
    pipeline: bool = False  # the jobs' own: nobody else publishes to the topics that they write
    plain_names: bool = False  # has the durable names from before there were users

    def __repr__(self) -> str:
        return f"User(roles={self.roles!r})"


@dataclass(frozen=True, slots=True)
class Token:
    user: str
    hash: str
    created: datetime
    expires: datetime | None = None

    def __repr__(self) -> str:
        return f"Token(user={self.user!r}, expires={self.expires!r})"


@dataclass(frozen=True, slots=True)
class Users:
    users: Mapping[str, User] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    tokens: Mapping[str, Token] = field(default_factory=dict)
    doors: Mapping[str, str] = field(default_factory=dict)  # who comes in without credentials

    @classmethod
    def load(cls, path: Path) -> "Users":
        """What the file says, or `ConfigError`."""
        return read(_text_of(path), str(path))

    def with_user(self, name: str, user: User | None) -> "Users":
        """The same with a user, or (None) without it and its tokens."""
        users = {known: one for known, one in self.users.items() if known != name}
        tokens = dict(self.tokens)
        doors = dict(self.doors)
        if user is not None:
            users[name] = user
        else:
            tokens = {known: token for known, token in tokens.items() if token.user != name}
            doors = {door: default for door, default in doors.items() if default != name}
        return replace(self, users=users, tokens=tokens, doors=doors)


def hash_token(token: str) -> str:
    """Tokens are drawn at random, so that a quick hash says nothing of them."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r:.80} cannot be a name: it has 1 to 64 letters, digits, _, @, . or -, and begins with one of the "
            "first four."
        )


# --- reading


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"The users' file {path} is no file.")
            if status.st_mode & 0o077:
                raise ConfigError(
                    f"The users' file {path} is open to others than its owner: chmod 600 {path}"
                )
            if status.st_uid not in (0, os.geteuid()):
                raise ConfigError(f"The users' file {path} belongs to another user of the system.")
            if status.st_size > MAX_SIZE:
                raise ConfigError(f"The users' file {path} is larger than {MAX_SIZE >> 20} MiB.")
            return file.read().decode()
    except OSError as error:
        raise ConfigError(f"The users' file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"The users' file {path} is not UTF-8, at byte {error.start}.") from None


def read(text: str, source: str) -> Users:
    """What a text says; `source` is what mistakes are reported with."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: this is not TOML: {error}.") from None
    return _Reader(text, source).users(tables)


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source

    def _fail(self, where: tuple[str, ...], problem: object) -> NoReturn:
        raise ConfigError(f"{self._source}, line {line_of(self._text, where)}: {'.'.join(where)}: {problem}")

    def users(self, tables: dict[str, Any]) -> Users:
        known = {"users", "roles", "tokens", "doors"}
        for name in tables.keys() - known:
            self._fail((name,), f"there is no such table; there are {', '.join(sorted(known))}.")
        roles = {name: self._role(name, table) for name, table in self._table(tables, "roles")}
        users = {name: self._user(name, table, roles) for name, table in self._table(tables, "users")}
        if not users:
            raise ConfigError(
                f"{self._source}, line 1: there is no user in it, so nobody could do anything. "
                "Add one: stafeta user add NAME"
            )
        tokens = {name: self._token(name, table, users) for name, table in self._table(tables, "tokens")}
        doors = self._doors(tables.get("doors", {}), users)
        for flag in ("pipeline", "plain_names"):
            having = [name for name, user in users.items() if getattr(user, flag)]
            if len(having) > 1:
                self._fail(("users", having[1], flag), f"{having[0]} has it already, and only one user may.")
        return Users(users, roles, tokens, doors)

    def _table(self, tables: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        found = tables.get(name, {})
        if not isinstance(found, dict):
            self._fail((name,), "it must be a table.")
        for key, table in found.items():
            if not NAME.fullmatch(key):
                try:
                    check_name(key)
                except ConfigError as error:
                    self._fail((name, key), error)
            if not isinstance(table, dict):
                self._fail((name, key), "it must be a table.")
            yield key, table

    def _fields(self, where: tuple[str, ...], table: dict[str, Any], known: Mapping[str, type]) -> None:
        for key, value in table.items():
            if key not in known:
                self._fail((*where, key), f"there is no such field; there are {', '.join(known)}.")
            if type(value) is not known[key]:
                self._fail((*where, key), f"{type(value).__name__} is not {known[key].__name__}.")
            if isinstance(value, list) and not all(isinstance(one, str) for one in value):
                self._fail((*where, key), "it must be a list of strings.")

    def _rules(
        self, where: tuple[str, ...], table: dict[str, Any]
    ) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
        made: list[tuple[Rule, ...]] = []
        for key in ("allow", "deny"):
            try:
                made.append(tuple(map(Rule.read, table.get(key, []))))
            except ConfigError as error:
                self._fail((*where, key), error)
        return made[0], made[1]

    def _role(self, name: str, table: dict[str, Any]) -> Role:
        self._fields(("roles", name), table, {"allow": list, "deny": list})
        return Role(*self._rules(("roles", name), table))

    def _user(self, name: str, table: dict[str, Any], roles: Mapping[str, Role]) -> User:
        where = ("users", name)
        known = {"password": str, "roles": list, "allow": list, "deny": list, "curve_keys": list}
        self._fields(where, table, {**known, "pipeline": bool, "plain_names": bool})
        for role in table.get("roles", []):
            if role not in roles:
                self._fail((*where, "roles"), f"there is no role {role!r}.")
        password = table.get("password", "")
        if password and not password.startswith("$argon2id$"):
            self._fail((*where, "password"), "it must be a hash of Argon2id: stafeta user passwd writes one.")
        for key in table.get("curve_keys", []):
            if not _CURVE.fullmatch(key):
                self._fail((*where, "curve_keys"), "a public key has 40 characters: stafeta keys writes one.")
        allow, deny = self._rules(where, table)
        return User(
            password,
            tuple(table.get("roles", [])),
            allow,
            deny,
            tuple(table.get("curve_keys", [])),
            table.get("pipeline", False),
            table.get("plain_names", False),
        )

    def _token(self, name: str, table: dict[str, Any], users: Mapping[str, User]) -> Token:
        where = ("tokens", name)
        self._fields(where, table, {"user": str, "hash": str, "created": datetime, "expires": datetime})
        for key in ("user", "hash", "created"):
            if key not in table:
                self._fail(where, f"{key} is missing.")
        if table["user"] not in users:
            self._fail((*where, "user"), f"there is no user {table['user']!r}.")
        if not _HASH.fullmatch(table["hash"]):
            self._fail(
                (*where, "hash"), "it must be 64 hexadecimal digits: stafeta token create writes them."
            )
        for key in ("created", "expires"):
            if key in table and table[key].tzinfo is None:
                self._fail((*where, key), "it must have a time zone, such as 2027-01-01T00:00:00Z.")
        return Token(table["user"], table["hash"], table["created"], table.get("expires"))

    def _doors(self, table: object, users: Mapping[str, User]) -> dict[str, str]:
        if not isinstance(table, dict):
            self._fail(("doors",), "it must be a table.")
        self._fields(("doors",), table, dict.fromkeys(DOORS, str))
        for door, user in table.items():
            if user not in users:
                self._fail(("doors", door), f"there is no user {user!r}.")
        return dict(table)


def line_of(text: str, where: tuple[str, ...]) -> int:
    """The line that a table, or a key of one, is on; that of the table where the key is not found, else 1."""
    best, depth = 1, 0
    path: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line.startswith("["):
            path = _path(line.strip("[] "))
            found = path
        else:
            key, equals, _ = line.partition("=")
            if not equals:
                continue
            found = (*path, *_path(key.strip()))
        common = len(found) if found == where[: len(found)] else 0
        if common > depth:
            best, depth = number, common
    return best


def _path(text: str) -> tuple[str, ...]:
    with suppress(ValueError):
        found: Any = tomllib.loads(f"{text} = 0")
        path: list[str] = []
        while isinstance(found, dict):
            ((key, found),) = found.items()
            path.append(key)
        return tuple(path)
    return ()


# --- writing


def write(users: Users) -> str:
    """The file's text."""
    from stafeta.config.toml import write as write_toml

    tables: dict[str, Any] = {
        "doors": dict(users.doors),
        "roles": {name: _plain(role) or {"allow": []} for name, role in users.roles.items()},
        "users": {name: _plain(user) or {"roles": []} for name, user in users.users.items()},
        "tokens": {name: _plain(token) for name, token in users.tokens.items()},
    }
    return (
        "# Written by stafeta user, stafeta token and stafeta role; they keep no comments.\n\n"
        + write_toml(tables)
    )


def _plain(one: User | Role | Token) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in one.__slots__:
        value = getattr(one, key)
        if isinstance(value, tuple):
            value = [str(part) for part in value]
        if value or key == "created":
            found[key] = value
    return found


def save(path: Path, users: Users) -> None:
    """Put the file in the place of the old one, at once; only its owner can read it."""
    text = write(users)
    read(text, str(path))  # what could not be read again is not written
    path = path.resolve() if path.is_symlink() else path
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"The users' file {path} cannot be written: {error.strerror}.") from None


@contextmanager
def editing(path: Path) -> Iterator[None]:
    """One program at a time changes the file."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"The folder of {path} cannot be read: {error.strerror}.") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
