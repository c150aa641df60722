"""Runs Python scripts one after the other in one process, so that they share a JVM.

python -m tests.pipeline.scripts RESULT PYTHON SCRIPT…

runs each SCRIPT, a file and its arguments, and then stops its Spark session. Writes what each of them has printed into
the file RESULT, as a list in JSON. PYTHON is what they find as the Python that they run in.
"""

import json
import os
import runpy
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from pyspark.sql import SparkSession


def output(words: list[str]) -> str:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # it is the script that has to set them
        os.environ.pop(name, None)
    sys.argv = words
    with redirect_stdout(StringIO()) as printed:
        runpy.run_path(words[0], run_name="__main__")
    if session := SparkSession.getActiveSession():
        session.stop()
    return printed.getvalue()


if __name__ == "__main__":
    result, sys.executable, *scripts = sys.argv[1:]
    printed = [output(shlex.split(script)) for script in scripts]
    Path(result).write_text(json.dumps(printed))
