"""Jobs from a user's file: the functions in it that `@job` marks.

1. The file is run as a module of its own name, with its folder on the path, as Python runs a script.
2. What it defines travels to Spark's workers by value: they do not have the file.
"""

import importlib.util
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from stafeta.errors import ConfigError, StafetaError
from stafeta.pipeline.job import MARK, Job


def jobs_in(path: Path) -> list[Job]:
    """The jobs of a file, in its order. An error in the file names its line."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. A job of Stafeta's own is named without a path or .py.")
    module = _imported(path)
    marked = [
        found for value in vars(module).values() if isinstance(found := getattr(value, MARK, None), Job)
    ]
    jobs = list({id(one): one for one in marked}.values())
    if not jobs:
        raise ConfigError(f"{path} has no job: mark a function with @job, from stafeta.pipeline.")
    return [replace(one, source=str(path.absolute())) for one in jobs]


def _imported(path: Path) -> ModuleType:
    from pyspark import cloudpickle

    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = f"stafeta_job_{''.join(sign if sign.isalnum() else '_' for sign in name)}"
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
        # Workers on this machine find it there.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file: its name has to end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except StafetaError as error:
        del sys.modules[name]
        raise ConfigError(f"{_where(path, error)}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        del sys.modules[name]
        raise ConfigError(f"{_where(path, error)}: {type(error).__name__}: {_said(error)}") from None
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _where(path: Path, error: Exception) -> str:
    """The file, and the line of it that the error comes from."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _said(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)
