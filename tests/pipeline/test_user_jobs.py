"""Jobs from users' files."""

from pathlib import Path

import pytest

from stafeta.errors import ConfigError
from stafeta.pipeline.user_jobs import jobs_in


def written(tmp_path: Path, text: str, name: str = "my-job.py") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "has no job: mark a function with @job"),
        ("x = (\n", r"my-job.py, line 1: SyntaxError: '\(' was never closed"),
        ("\n\nimport nothing_like_this\n", "my-job.py, line 3: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\n\nf()\n", "my-job.py, line 2: ZeroDivisionError: division by zero"),
        (
            "from stafeta.pipeline import job\n@job(into='a/#')\ndef f(rows): ...\n",
            "line 2: The job 'f': The topic 'a/#' has '#' in it",
        ),
    ],
)
def test_a_mistake_in_a_users_file_is_told_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        jobs_in(written(tmp_path, text))


def test_a_file_that_is_not_there_or_not_python_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no file"):
        jobs_in(tmp_path / "none.py")
    with pytest.raises(ConfigError, match="is not a Python file"):
        jobs_in(written(tmp_path, "", "my_job.txt"))


def test_all_marked_functions_of_a_file_are_jobs_and_stay_functions(tmp_path: Path) -> None:
    text = (
        "from stafeta.pipeline import job\n"
        "@job(subscribe='a/#', into='b', name='one')\ndef first(rows):\n    'Says so.'\n    return rows\n"
        "@job\ndef second_one(context): ...\n"
        "also_first = first\nassert first(3) == 3\n"
    )
    path = written(tmp_path, text)
    jobs = jobs_in(path)
    assert [(job.name, job.about, job.source) for job in jobs] == [
        ("one", "Says so.", str(path)),
        ("second-one", "", str(path)),
    ]
