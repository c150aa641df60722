"""`stafeta spark`: what it prints runs as it stands, and the shell has what it says."""

import ast
import os
import pty
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta as package
from stafeta.cli import exits
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.pipeline.processes import Family
from tests.pipeline.sessions import INTERPRETED, settings
from tests.waiting import PATIENCE

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
MISSING = "stafeta: Spark needs PySpark, which is missing: pip install 'stafeta[spark]'.\n"
NO_JAVA = "stafeta: Spark needs Java 17 or newer, and there is none on the PATH. Install "
STAFETA = ("-m", "stafeta")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that holds two topics."""
    options = ("--set", 'topics."#".keep=36500d')
    with BrokerProcess(tmp_path / "data", *options, doors=("flight",)) as process:
        with package.connect(address(process)) as connection:
            connection.publish("hall/a", ["20.5", "21.5"], kind="float")
            connection.publish("b", ["text"])
        yield process


@pytest.fixture
def family() -> Iterator[Family]:
    with Family() as one:
        yield one


@pytest.fixture
def environment(tmp_path: Path, family: Family) -> dict[str, str]:
    """One with a python3 on the PATH that is none: nothing may depend on that."""
    program(tmp_path / "bin" / "python3", "exit 1")
    kept = {
        name: value
        for name, value in family.environment().items()
        if not name.startswith(("STAFETA_", "SPARK_", "PYSPARK_", "PYTHON"))
    }
    return kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def small(folder: Path) -> list[str]:
    """Arguments that make Spark a small one."""
    (folder / "spark").mkdir()
    chosen = settings(folder / "spark") | INTERPRETED
    del chosen[PUSHDOWN]  # which is the shell's own to set
    return ["--", *(f"--conf={name}={value}" for name, value in chosen.items())]


# --- what cannot be done


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("--broker", "tcp://127.0.0.1:9001"),
            "--broker: 'tcp://127.0.0.1:9001' is no address of a Flight door; write it as grpc://127.0.0.1",
        ),
        (
            ("--broker", "grpc://localhost:65536"),
            "--broker: 'grpc://localhost:65536' is no address of a Flight door",
        ),
        (("--broker", ""), "--broker: '' is no address of a Flight door"),
        (("--subscribe", "a b"), "--subscribe: The topic 'a b' has white space in it, at position 2."),
        (("--subscribe", "a,,b"), "--subscribe: The topic is empty."),
        (("--subscribe", "a/x+"), "--subscribe: In 'a/x+' the level 'x+' mixes a wildcard with text"),
        (("--master", "local"), "--master goes with --shell; what is printed is for a session of your own."),
        (("--", "--conf", "a=b"), "--conf goes with --shell"),
    ],
)
def test_wrong_arguments_are_one_sentence(stafeta: Stafeta, arguments: tuple[str, ...], why: str) -> None:
    done = stafeta("spark", *arguments)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert done.stderr.startswith(f"stafeta: {why}")


def test_without_pyspark_the_shell_is_one_sentence_and_printing_a_warning(tmp_path: Path) -> None:
    python, environment = without_pyspark(tmp_path)
    done = run(python, *STAFETA, "spark", "--shell", environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (exits.USAGE, "", MISSING)
    done = run(python, *STAFETA, "spark", environment=environment)
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (exits.OK, 3, MISSING)


def test_a_pyspark_without_spark_is_one_sentence(tmp_path: Path) -> None:
    python, environment = without_pyspark(tmp_path)
    (tmp_path / "site" / "pyspark").mkdir()
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    done = run(python, *STAFETA, "spark", "--shell", environment=environment)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert done.stderr.startswith("stafeta: The PySpark that is installed has no Spark in it: pip install")


def test_without_java_the_shell_is_one_sentence_and_printing_a_warning(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment["PATH"] = str(tmp_path / "bin")
    environment.pop("JAVA_HOME", None)
    done = run(sys.executable, *STAFETA, "spark", "--shell", environment=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (exits.USAGE, "", 1)
    assert done.stderr.startswith(NO_JAVA)
    done = run(sys.executable, *STAFETA, "spark", environment=environment)
    assert (done.returncode, len(done.stdout.splitlines())) == (exits.OK, 3)
    assert done.stderr.startswith(NO_JAVA)


def test_a_java_that_is_too_old_is_told_before_spark_starts(
    environment: dict[str, str], tmp_path: Path
) -> None:
    old = program(tmp_path / "old" / "bin" / "java", """echo 'openjdk version "1.8.0_292"' >&2""")
    environment["JAVA_HOME"] = str(tmp_path / "old")
    done = run(sys.executable, *STAFETA, "spark", "--shell", environment=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (exits.USAGE, "", 1)
    assert f"and {old} is Java 8. Let JAVA_HOME name another, or unset it. Install" in done.stderr


# --- what it prints


def test_it_prints_three_lines(stafeta: Stafeta) -> None:
    done = stafeta("spark", "--broker", "grpc+tls://host:1", "--subscribe", "hall/+, b")
    assert (done.returncode, done.stderr) == (exits.OK, "")
    assert (
        done.stdout
        == """\
import os, sys; from pyspark.sql import SparkSession; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
messages = spark.read.format("stafeta").options(broker="grpc+tls://host:1", subscribe="hall/+,b", decode="true").load()
"""
    )


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a'\"b", "a\\b", "a\\", "{a}", "ț/+", "\u200b"])
def test_a_filter_is_quoted_so_that_python_reads_the_same(stafeta: Stafeta, name: str) -> None:
    printed = stafeta("spark", "--subscribe", name).stdout
    keywords = [node for node in ast.walk(ast.parse(printed)) if isinstance(node, ast.keyword)]
    assert {one.arg: ast.literal_eval(one.value) for one in keywords}["subscribe"] == name


def test_printing_imports_neither_spark_nor_arrow() -> None:
    script = "import sys, stafeta.cli.main as cli; cli.main(['spark']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not modules & {"pyspark", "pyarrow", "numpy", "pandas"}


# --- the shell


@pytest.mark.slow
@pytest.mark.spark
def test_in_a_pipe_the_shell_runs_each_line_and_ends_at_the_first_error(
    broker: BrokerProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "startup.py").write_text("mine = 'my own'\n")
    lines = [
        f"spark.conf.get('{PUSHDOWN}'), spark.conf.get('spark.sql.shuffle.partitions'), sc.master",
        "messages.count()",
        "[row.asDict() for row in topics('hall/#', columns='number').collect()]",
        "mine",
        "1 / 0",
        "print('too late')",
    ]
    done = run(
        sys.executable,
        *(*STAFETA, "spark", "--shell", "--broker", address(broker), "--master", "local[1]"),
        *small(tmp_path),
        *("--conf", "spark.sql.shuffle.partitions=3"),
        environment=environment | {"PYTHONSTARTUP": str(tmp_path / "startup.py")},
        stdin="".join(f"{line}\n" for line in lines),
    )
    greeting = f"Messages of # at {address(broker)} available as 'messages'"
    assert greeting in done.stdout, done.stderr
    assert done.stdout.partition(greeting)[2].splitlines()[1:] == [
        "('true', '3', 'local[1]')",
        "3",
        "[{'number': 20.5}, {'number': 21.5}]",
        "'my own'",
    ]
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.slow
@pytest.mark.spark
def test_on_a_terminal_the_shell_is_there_also_without_a_broker(
    environment: dict[str, str], family: Family, tmp_path: Path
) -> None:
    screen, tty = pty.openpty()
    command = [sys.executable, *STAFETA, "spark", "--shell", "--broker", "grpc://127.0.0.1:1"]
    command += ["--master", "local[2]", *small(tmp_path)]
    with subprocess.Popen(
        command,
        stdin=tty,
        stdout=tty,
        stderr=tty,
        env=environment | {"TERM": "dumb", "INPUTRC": os.devnull, "PYTHON_BASIC_REPL": "1"},
        start_new_session=True,
    ) as shell:
        os.close(tty)
        shown = read_until(screen, ">>> ")
        assert "Messages of # at grpc://127.0.0.1:1 available as 'messages'" in shown
        os.write(screen, b"messages.columns[:2], sc.master\n")
        assert "(['topic', 'offset'], 'local[2]')" in read_until(screen, "\n>>> ")
        os.write(screen, b"1 / 0\n")
        assert "ZeroDivisionError" in read_until(screen, "\n>>> ")
        os.write(screen, b"exit()\n")
        while read(screen):
            pass
        assert shell.wait(PATIENCE) == 0
    os.close(screen)
    assert not family.members(), "the JVM is gone"


def run(*command: str, environment: dict[str, str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False
    )


def read_until(screen: int, end: str) -> str:
    """What appears on the screen up to there."""
    shown = ""
    while end not in shown:
        more = read(screen)
        assert more, f"{end!r} does not appear: {shown}"
        shown += more.decode(errors="replace").replace("\r\n", "\n")
    return shown


def read(screen: int) -> bytes:
    try:
        return os.read(screen, 4096)
    except OSError:  # how Linux says that the other side is closed
        return b""


def without_pyspark(folder: Path) -> tuple[str, dict[str, str]]:
    """A Python that has everything but PySpark, and its environment."""
    venv.create(folder / "bare", symlinks=True)
    (folder / "site").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("pyspark"):
            (folder / "site" / path.name).symlink_to(path)
    search = os.pathsep.join((str(folder / "site"), str(Path(package.__file__).parents[1])))
    return str(folder / "bare" / "bin" / "python"), os.environ | {"PYTHONPATH": search, "SPARK_HOME": ""}


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def address(broker: BrokerProcess) -> str:
    return broker.flight
