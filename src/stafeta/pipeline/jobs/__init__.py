"""The jobs that come with Stafeta. Each is a module with a `JOB`, which is imported when it is asked for."""

from difflib import get_close_matches
from importlib import import_module
from typing import Final

from stafeta.errors import ConfigError
from stafeta.pipeline.job import Job

BUILT_IN: Final = ("archive", "rollup", "alerts", "deadletter", "audit", "replay", "compact")


def find(name: str) -> Job:
    """The built-in job of this name."""
    if name not in BUILT_IN:
        close = get_close_matches(name, BUILT_IN, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(BUILT_IN)}."
        raise ConfigError(
            f"No job has the name {name!r}. {hint} A file of your own is named with its path: ./{name}.py."
        )
    try:
        found: Job = import_module(f"stafeta.pipeline.jobs.{name}").JOB
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "stafeta":
            raise
        raise ConfigError(
            f"The job {name!r} needs {error.name}, which is missing: pip install 'stafeta[spark]'."
        ) from None
    return found
