"""Where programs of a user keep what they have to remember, if they are not given a place, and what saves them time."""

import os
from pathlib import Path


def folder() -> Path:
    """$STAFETA_STATE, or the place that the desktop's rules have for it."""
    given = os.environ.get("STAFETA_STATE")
    if given:
        return Path(given)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "stafeta"


def cache() -> Path:
    """For what can be made again."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stafeta"
