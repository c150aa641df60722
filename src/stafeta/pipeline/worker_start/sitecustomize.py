"""Lets Spark's Python processes import PySpark from where it is installed, and not from the archive beside it.

Spark puts `pyspark.zip` before everything else. Python does not keep what it has compiled of an archive: each process
that Spark starts, to plan, to read or to write, would compile all of PySpark again, which takes most of a second.
Python imports a module of this name before anything else.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def leave_archives_out(path: list[str]) -> list[str]:
    """The path without Spark's archives, where the same is installed on the rest of it."""
    kept = [entry for entry in path if not _is_archive(Path(entry).name)]
    return kept if all(PathFinder.find_spec(name, kept) for name in ("pyspark", "py4j")) else path


def _is_archive(name: str) -> bool:
    return name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith(".zip"))


def import_another() -> None:
    """Python imports one such module alone; somebody else may have one, too."""
    found = PathFinder.find_spec("sitecustomize", sys.path)
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


sys.path[:] = leave_archives_out([entry for entry in sys.path if Path(entry) != Path(__file__).parent])
import_another()
