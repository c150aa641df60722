"""Numbers that somebody wrote as an argument."""

import argparse
import re

from stafeta.errors import ConfigError


def positive(flag: str, text: str) -> float:
    """A number above 0, or `ConfigError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{flag} must be a number above 0, not {text!r}.")
    return value


def seconds(text: str) -> float:
    """A time of 0 or more seconds, as an option's type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, not {text!r}")
    return value


def whole(flag: str, text: str) -> int:
    """A whole number above 0, or `ConfigError`."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise ConfigError(f"{flag} must be a whole number above 0, not {text!r}.")
    return int(text)
