"""The table of doors that `stafeta serve --check` prints: where they listen, who comes in as whom, and may do what."""

from pathlib import Path
from typing import TYPE_CHECKING

from stafeta.text_tables import lines

if TYPE_CHECKING:
    from stafeta.config import Config
    from stafeta.security import Role, User, Users

DOORS = ("zeromq", "devices", "frames", "flight", "http")
MOST = 3  # rules that are shown of a user


def table(config: "Config") -> list[str]:
    """Its lines. Raises `ConfigError` where the file of users cannot be used."""
    users = None
    if config.security.users:
        from stafeta.security import Users

        users = Users.load(Path(config.security.users))
    rows = [("DOOR", "ADDRESS", "TLS", "COMES IN AS", "MAY")]
    for door in DOORS:
        section = getattr(config, door)
        places = [str(address) for address in config.addresses(section.listen)]
        tls = "yes" if getattr(section, "tls_cert", "") else "no"
        for who, may in _comers(door, users) if places else [("", "")]:
            rows.append((door, ", ".join(places) or "off", tls if places else "", who, may))
    return lines(rows, "<<<<<")


def _comers(door: str, users: "Users | None") -> list[tuple[str, str]]:
    if users is None:
        return [("anyone", "everything")]
    found = []
    default = users.doors.get(door)
    if default is not None:
        found.append((f"{default}, without credentials", _rules(users, default)))
    if door in ("flight", "http"):
        able = [name for name, user in users.users.items() if user.password]
        able += [token.user for token in users.tokens.values()]
        found += [(f"{name}, by password or token", _rules(users, name)) for name in sorted(set(able))]
    if door == "zeromq":
        found += [
            (f"{name}, by key", _rules(users, name)) for name, user in users.users.items() if user.curve_keys
        ]
    return found or [("nobody", "")]


def _rules(users: "Users", name: str) -> str:
    user = users.users[name]
    granted: list[User | Role] = [user, *(users.roles[role] for role in user.roles)]
    words = [str(rule) for one in granted for rule in one.allow]
    words += [f"not {rule}" for one in granted for rule in one.deny]
    more = f"; and {len(words) - MOST} more rules" if len(words) > MOST else ""
    return ("; ".join(words[:MOST]) or "nothing") + more
