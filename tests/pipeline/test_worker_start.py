"""Python processes of Spark import PySpark from where it is installed, quietly."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from stafeta.pipeline.session import python_path

ARCHIVES = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
_SHOW = "import sys, pyspark, py4j; print(pyspark.__file__, py4j.__file__, sep='\\n'); print(*sys.path, sep='\\n')"


def run(script: str, *path: str, options: tuple[str, ...] = ()) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((*map(str, ARCHIVES), *path))}
    done = subprocess.run(
        [sys.executable, *options, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_spark_has_archives() -> None:
    assert [path.name.partition("-")[0] for path in ARCHIVES] == ["py4j", "pyspark.zip"]
    assert run(_SHOW)[0].startswith(str(ARCHIVES[-1]))


def test_what_is_installed_goes_before_the_archives(tmp_path: Path) -> None:
    theirs, other, *path = run(_SHOW, python_path(), str(tmp_path))
    assert theirs == pyspark.__file__
    assert ".zip" not in other
    assert not [entry for entry in path if entry in map(str, ARCHIVES) or entry.endswith("worker_start")]
    assert str(tmp_path) in path


def test_somebody_elses_sitecustomize_is_run_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('another')")
    assert run("print('script')", python_path(), str(tmp_path)) == ["another", "script"]


def test_where_pyspark_is_not_installed_the_archives_stay() -> None:
    found = run("import pyspark; print(pyspark.__file__)", python_path(), options=("-S",))
    assert found[0].startswith(str(ARCHIVES[-1]))
