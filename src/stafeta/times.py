"""Times: inside, microseconds since 1970; outside, ISO 8601 in UTC, with a Z."""

from datetime import UTC, datetime, timedelta
from typing import Final

from stafeta.errors import ConfigError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def micros_of(time: datetime) -> int:
    """A time that has a zone, in microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


def time_of(micros: int) -> datetime:
    """The time so many microseconds after the beginning of 1970."""
    return EPOCH + timedelta(microseconds=micros)


def iso(time: datetime, timespec: str = "auto") -> str:
    """2026-11-16T08:00:00Z, with as many decimals as there are, or as asked for."""
    return time.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parse(text: str) -> int:
    """Microseconds since 1970 of a time as people write it. Raises `ConfigError`."""
    plain = text.strip()
    if plain.removeprefix("-").isdecimal():
        return int(plain) * 1000
    try:
        time = datetime.fromisoformat(plain)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ConfigError(
            f"{text!r} is no time; write ISO 8601 with a zone, 2026-11-16T08:00:00Z, or milliseconds since 1970."
        )
    return micros_of(time)
