"""Lets Spark's Python processes import PySpark from where it is installed, and not from the archive beside it.

Spark puts `pyspark.zip` before everything else. Python does not keep what it has compiled of an archive: each process
that Spark starts, to plan, to read or to write, would compile all of PySpark again, which takes most of a second.
Python imports a module of this name before anything else.
"""

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path


def leave_archives_out() -> None:
    """Takes the archives off the path, where the same is installed; and this folder, so that whoever else has such a
    module finds it."""
    kept = [path for path in sys.path if not path.endswith(".zip") and Path(path) != Path(__file__).parent]
    if all(PathFinder.find_spec(name, kept) is not None for name in ("pyspark", "py4j")):
        archives = [path for path in sys.path if path.endswith(".zip") and not _is_spark(path)]
        sys.path[:] = [*archives, *kept]


def _is_spark(path: str) -> bool:
    return Path(path).name == "pyspark.zip" or Path(path).name.startswith("py4j-")


leave_archives_out()
sys.modules.pop("sitecustomize", None)
with suppress(ImportError):
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - another one
