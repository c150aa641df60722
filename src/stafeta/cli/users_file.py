"""What the commands `user`, `token` and `role` do to the users' file."""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stafeta.errors import ConfigError
from stafeta.security import Role, Token, User, Users
from stafeta.security.passwords import LONGEST, check_new, hash_password
from stafeta.security.rules import Rule
from stafeta.security.security import load_use, new_token, used_path
from stafeta.security.users import check_name, editing, hash_token, now, save
from stafeta.times import iso
from stafeta.units import parse_duration

MOST_DAYS = 36_500
Row = dict[str, object]


def _change(options: argparse.Namespace, change: Callable[[Users], Users], *, new: bool = False) -> None:
    path = Path(options.users)
    with editing(path):
        known = Users() if new and not path.exists() else Users.load(path)
        save(path, change(known))


def _rules(texts: Iterable[str] | None) -> tuple[Rule, ...]:
    return tuple(map(Rule.read, texts or ()))


def read_password(prompt: str) -> str:
    """From the terminal, where it is not shown, or the first line of standard input. Never from the command line, which
    everybody on the machine can see."""
    if sys.stdin.isatty():
        from getpass import getpass

        password = getpass(f"{prompt}: ")
        if getpass("Once more: ") != password:
            raise ConfigError("These are two passwords.")
    else:
        password = sys.stdin.readline(LONGEST + 2).removesuffix("\n")
    check_new(password)
    return password


# --- users


def add_user(options: argparse.Namespace) -> None:
    check_name(options.name)
    _check_new(options)  # before anybody types a password
    password = "" if options.no_password else hash_password(read_password(f"Password for {options.name}"))

    def change(users: Users) -> Users:
        if options.name in users.users:
            raise ConfigError(f"There is a user {options.name} already.")
        return _with(users, options, User(password))

    _change(options, change, new=True)


def _check_new(options: argparse.Namespace) -> None:
    path = Path(options.users)
    if path.exists() and options.name in Users.load(path).users:
        raise ConfigError(f"There is a user {options.name} already.")


def set_user(options: argparse.Namespace) -> None:
    _change(options, lambda users: _with(users, options, _user(users, options.name)))


def _with(users: Users, options: argparse.Namespace, user: User) -> Users:
    changed = replace(
        user,
        roles=user.roles if options.role is None else tuple(options.role),
        allow=user.allow if options.allow is None else _rules(options.allow),
        deny=user.deny if options.deny is None else _rules(options.deny),
        curve_keys=user.curve_keys if options.curve_key is None else tuple(options.curve_key),
        pipeline=user.pipeline or options.pipeline,
        plain_names=user.plain_names or options.plain_names,
    )
    found = users.with_user(options.name, changed)
    return replace(found, doors={**found.doors, **dict.fromkeys(options.door or (), options.name)})


def set_password(options: argparse.Namespace) -> None:
    _user(Users.load(Path(options.users)), options.name)  # before anybody types a password
    password = hash_password(read_password(f"New password for {options.name}"))
    _change(
        options,
        lambda users: users.with_user(options.name, replace(_user(users, options.name), password=password)),
    )


def remove_user(options: argparse.Namespace) -> None:
    def change(users: Users) -> Users:
        _user(users, options.name)
        if len(users.users) == 1:
            raise ConfigError(f"{options.name} is the last user, and a file without users is refused.")
        return users.with_user(options.name, None)

    _change(options, change)


def _user(users: Users, name: str) -> User:
    if name not in users.users:
        raise ConfigError(f"There is no user {name!r:.80}.")
    return users.users[name]


def user_rows(options: argparse.Namespace) -> list[Row]:
    users = Users.load(Path(options.users))
    return [
        {
            "user": name,
            "password": "yes" if user.password else "no",
            "tokens": sum(token.user == name for token in users.tokens.values()),
            "doors": [door for door, default in users.doors.items() if default == name],
            "roles": list(user.roles),
            "allow": list(map(str, user.allow)),
            "deny": list(map(str, user.deny)),
        }
        for name, user in sorted(users.users.items())
    ]


# --- tokens


def create_token(options: argparse.Namespace) -> str:
    """The token, which is kept nowhere."""
    check_name(options.name)
    expires = None
    if options.expires is not None:
        seconds = parse_duration(options.expires)
        if not 0 < seconds <= MOST_DAYS * 86_400:
            raise ConfigError(f"A token expires after at most {MOST_DAYS} days, and not at once.")
        expires = now() + timedelta(seconds=seconds)
    token = new_token()

    def change(users: Users) -> Users:
        _user(users, options.user)
        if options.name in users.tokens:
            raise ConfigError(f"There is a token {options.name} already.")
        made = Token(options.user, hash_token(token), now(), expires)
        return replace(users, tokens={**users.tokens, options.name: made})

    _change(options, change)
    return token


def revoke_token(options: argparse.Namespace) -> None:
    def change(users: Users) -> Users:
        if options.name not in users.tokens:
            raise ConfigError(f"There is no token {options.name!r:.80}.")
        return replace(
            users, tokens={name: one for name, one in users.tokens.items() if name != options.name}
        )

    _change(options, change)


def token_rows(options: argparse.Namespace) -> list[Row]:
    path = Path(options.users)
    users, used = Users.load(path), load_use(used_path(path))
    return [
        {
            "token": name,
            "user": token.user,
            "created": iso(token.created.astimezone(UTC), "seconds"),
            "expires": iso(token.expires.astimezone(UTC), "seconds") if token.expires else "never",
            "last_use": iso(datetime.fromtimestamp(used[name], UTC), "seconds") if name in used else "never",
        }
        for name, token in sorted(users.tokens.items())
    ]


# --- roles


def set_role(options: argparse.Namespace) -> None:
    check_name(options.name)
    role = Role(_rules(options.allow), _rules(options.deny))
    _change(options, lambda users: replace(users, roles={**users.roles, options.name: role}))


def remove_role(options: argparse.Namespace) -> None:
    def change(users: Users) -> Users:
        if options.name not in users.roles:
            raise ConfigError(f"There is no role {options.name!r:.80}.")
        having = sorted(name for name, user in users.users.items() if options.name in user.roles)
        if having:
            raise ConfigError(f"The role {options.name} is that of {', '.join(having[:5])}.")
        return replace(
            users, roles={name: role for name, role in users.roles.items() if name != options.name}
        )

    _change(options, change)


def role_rows(options: argparse.Namespace) -> list[Row]:
    users = Users.load(Path(options.users))
    return [
        {
            "role": name,
            "users": sum(name in user.roles for user in users.users.values()),
            "allow": list(map(str, role.allow)),
            "deny": list(map(str, role.deny)),
        }
        for name, role in sorted(users.roles.items())
    ]
