"""Sizes and durations as people write them: 256KiB, 10GB, 1_000_000; 500ms, 90s, 7d."""

import re
from decimal import Decimal

from stafeta.errors import ConfigError

SIZES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_BY_LOWER_CASE = {name.lower(): bytes_ for name, bytes_ in SIZES.items()}
_MOST = (1 << 63) - 1  # what SQLite and C can hold
_COUNT = re.compile(r"\d(?:_?\d){0,18}", re.ASCII)
_QUANTITY = re.compile(r"(?P<number>\d(?:_?\d){0,18}(?:\.\d{1,6})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


def parse_count(value: object) -> int:
    """A whole number, zero or more: 1000, "1_000_000"."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return value
    if isinstance(value, str) and _COUNT.fullmatch(text := value.strip()) and (count := int(text)) <= _MOST:
        return count
    raise ConfigError(f"{value!r} is not a count; write a whole number such as 1000 or 1_000_000.")


def parse_size(value: object) -> int:
    """Bytes: a number, with or without a unit (KiB is 1024 bytes, KB is 1000)."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return value
    if isinstance(value, str) and (found := _QUANTITY.fullmatch(value.strip())):
        factor = _BY_LOWER_CASE.get(found["unit"].lower() or "b")
        if factor and (size := Decimal(found["number"]) * factor) <= _MOST and size == int(size):
            return int(size)
    raise ConfigError(f"{value!r} is not a size; write a number of bytes, or a size such as 256KiB or 10GB.")


def format_size(size: int) -> str:
    """The shortest way to write a size that `parse_size` reads back as the same number."""
    written = [f"{size // factor}{unit}" for unit, factor in SIZES.items() if size and size % factor == 0]
    return min(written, key=len, default="0B")


def parse_duration(value: object) -> float:
    """Seconds, from a number and a unit: ms, s, m, h, d or w."""
    if isinstance(value, str) and (found := _QUANTITY.fullmatch(value.strip())):
        factor = MILLISECONDS.get(found["unit"])
        if factor:
            return round(Decimal(found["number"]) * factor) / 1000
    raise ConfigError(
        f"{value!r} is not a duration; write a number and one of ms, s, m, h, d, w, such as 500ms or 7d."
    )


def format_duration(seconds: float) -> str:
    """The shortest way to write a duration, to the millisecond."""
    milliseconds = round(seconds * 1000)
    written = [
        f"{milliseconds // factor}{unit}"
        for unit, factor in reversed(MILLISECONDS.items())
        if milliseconds and milliseconds % factor == 0
    ]
    return min(written, key=len, default="0s")
