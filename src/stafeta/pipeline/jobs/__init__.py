"""The jobs that come with Stafeta. Each is a module with a `JOB`, which is imported when it is asked for: that takes
seconds, with PySpark and PyIceberg."""

from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

from stafeta.errors import ConfigError
from stafeta.pipeline.job import Job


class BuiltIn(NamedTuple):
    about: str
    batch: bool = False


BUILT_IN: Final = {
    "archive": BuiltIn("every topic into the lake's table messages, exactly once"),
    "rollup": BuiltIn("readings in windows of time, to topics rollup/<size>/<topic> and the lake"),
    "alerts": BuiltIn("rules over readings: raised and cleared once each, to alerts/<rule>/<topic>"),
    "deadletter": BuiltIn("what is not of its kind or schema, to dead/<topic> and the lake, with the reason"),
    "audit": BuiltIn("proves that lake and log have every message once, and the same", batch=True),
    "replay": BuiltIn("sends messages of the lake to topics again, exactly once", batch=True),
    "compact": BuiltIn("small files of closed days into large ones, and old snapshots away", batch=True),
}


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
