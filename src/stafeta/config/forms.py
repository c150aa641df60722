"""The forms that the value of an option can take.

1. A form reads what a TOML file holds (`4`, `true`, `["a", "b"]`) and what an environment variable or a flag holds
   (always a string, `"4"`, `"true"`, `"a,b"`) into the same value.
2. A value that is not right is a ConfigError whose sentence names it and says what would be.
3. What `write` returns can stand in a TOML file, and is read back as the same value.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stafeta import addresses, units
from stafeta.addresses import MAX_PORT, Address
from stafeta.errors import ConfigError
from stafeta.names import check_filter

T = TypeVar("T")
Plain: TypeAlias = bool | int | str | list["Plain"]


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    read: Callable[[object], T]
    write: Callable[[T], Plain]


class Keep(NamedTuple):
    """How long a message stays after everyone has acknowledged it: until the first of these limits is reached."""

    age_seconds: float | None = None
    bytes: int | None = None
    messages: int | None = None


def count(minimum: int = 0) -> Form[int]:
    return Form(lambda value: _at_least(minimum, units.parse_count(value), str), lambda value: value)


def size(minimum: int = 1) -> Form[int]:
    return Form(
        lambda value: _at_least(minimum, units.parse_size(value), units.format_size), units.format_size
    )


def duration(minimum: float = 0.001) -> Form[float]:
    def read(value: object) -> float:
        return _at_least(minimum, units.parse_duration(value), units.format_duration)

    return Form(read, units.format_duration)


def choice(*words: str) -> Form[str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ConfigError(f"{value!r} is not one of {', '.join(words)}.")

    return Form(read, lambda value: value)


def flag() -> Form[bool]:
    return Form(_read_flag, lambda value: value)


def folder() -> Form[Path]:
    return Form(_read_folder, str)


def host() -> Form[str]:
    return Form(addresses.read_host, lambda value: value)


def text(what: str, *, empty: bool = False) -> Form[str]:
    """One line, which whoever uses it looks into: a path, an address, a name."""

    def read(value: object) -> str:
        if isinstance(value, str) and (value or empty) and not _CONTROL.search(value):
            return value
        raise ConfigError(f"{value!r} is not {what}.")

    return Form(read, lambda value: value)


def filters() -> Form[str]:
    """Filters with commas between, as Spark takes them."""
    return Form(_read_filters, lambda value: value)


def durations(minimum: float = 0.001) -> Form[tuple[float, ...]]:
    """One duration or more, each once."""
    one = duration(minimum)

    def read(value: object) -> tuple[float, ...]:
        found = tuple(map(one.read, _parts(value)))
        if not found or len(set(found)) < len(found):
            raise ConfigError(f"{value!r} is not a list of durations, each once, such as 10s, 1m.")
        return found

    return Form(read, lambda value: [one.write(each) for each in value])


def networks() -> Form[tuple[str, ...]]:
    """Networks such as 10.0.0.0/8 or fd00::/8; none is all of them."""

    def read(value: object) -> tuple[str, ...]:
        parts = [] if value in ("", []) else _parts(value)
        try:
            return tuple(str(ip_network(str(part))) for part in parts)
        except ValueError as error:
            raise ConfigError(f"{value!r} is no list of networks such as 10.0.0.0/8: {error}.") from None

    return Form(read, _as_list)


def hosts() -> Form[tuple[str, ...]]:
    """Names of machines, such as broker.example.com; none is none."""

    def read(value: object) -> tuple[str, ...]:
        parts = [] if value in ("", []) else _parts(value)
        return tuple(addresses.read_host(part).lower() for part in parts)

    return Form(read, _as_list)


def listen() -> Form[tuple[Address, ...]]:
    return Form(_read_listen, _write_listen)


def keep() -> Form[Keep]:
    return Form(_read_keep, _write_keep)


Number = TypeVar("Number", int, float)


def _at_least(minimum: Number, value: Number, write: Callable[[Number], str]) -> Number:
    if value < minimum:
        raise ConfigError(f"{write(value)} is too small; the least is {write(minimum)}.")
    return value


_FLAGS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    raise ConfigError(f"{value!r} is neither true nor false.")


def _read_folder(value: object) -> Path:
    if isinstance(value, str | Path) and str(value) and "\0" not in str(value):
        try:
            return Path(value).expanduser()
        except RuntimeError:
            raise ConfigError(f"{value!r} begins with the home of nobody that is known here.") from None
    raise ConfigError(f"{value!r} is not the path of a folder.")


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _read_filters(value: object) -> str:
    names = [name for name in _parts(value) if isinstance(name, str)]
    if len(names) < len(_parts(value)) or not names:
        raise ConfigError(f"{value!r} is not a filter, or several with commas between.")
    for name in names:
        check_filter(name)
    return ",".join(names)


_LISTEN = "write a port (0 for any free one), HOST:PORT, a list of those, or off."


def _read_listen(value: object) -> tuple[Address, ...]:
    if value == "off" or value == []:
        return ()
    return tuple(_read_address(part) for part in _parts(value))


def _parts(value: object) -> list[object]:
    """A list of TOML, or one of a flag: its parts parted by commas."""
    if isinstance(value, list):
        return value
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]


def _read_address(value: object) -> Address:
    if isinstance(value, str) and ":" in value:
        return addresses.read(value)
    try:
        number = units.parse_count(value)
    except ConfigError:
        raise ConfigError(f"{value!r} is not where a door can listen; {_LISTEN}") from None
    if number > MAX_PORT:
        raise ConfigError(f"{number} is not a port; ports end at {MAX_PORT}.")
    return Address("", number)


def _write_listen(value: tuple[Address, ...]) -> Plain:
    parts: list[Plain] = [str(address) if address.host else address.port for address in value]
    return parts[0] if len(parts) == 1 else parts or "off"


_KEEP = (
    "write a duration such as 7d, a size such as 10GB, a count such as '1000 messages', or a list of those."
)


def _read_keep(value: object) -> Keep:
    parts = _parts(value)
    found = Keep()
    for part in parts:
        one = _read_one_keep(part)
        for field, limit in one._asdict().items():
            if limit is not None:
                if getattr(found, field) is not None:
                    raise ConfigError(f"{value!r} sets the same limit twice; {_KEEP}")
                found = found._replace(**{field: limit})
    return found


def _read_one_keep(value: object) -> Keep:
    if isinstance(value, str):
        number, _, unit = value.rpartition(" ")
        try:
            if unit in ("message", "messages"):
                return Keep(messages=units.parse_count(number))
            if value[-1:].upper() == "B":
                return Keep(bytes=units.parse_size(value))
            return Keep(age_seconds=units.parse_duration(value))
        except ConfigError:
            pass
    raise ConfigError(f"{value!r} is not how long to keep messages; {_KEEP}")


def _write_keep(value: Keep) -> Plain:
    parts: list[Plain] = []
    if value.age_seconds is not None:
        parts.append(units.format_duration(value.age_seconds))
    if value.bytes is not None:
        parts.append(units.format_size(value.bytes))
    if value.messages is not None:
        parts.append(f"{value.messages} messages")
    return parts[0] if len(parts) == 1 else parts


def _as_list(value: tuple[str, ...]) -> Plain:
    return [*value]
