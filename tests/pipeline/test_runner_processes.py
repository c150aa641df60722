"""`stafeta pipeline run` on a terminal, and questions to its Spark. That it is killed, started again and ended is in
test_killed.py."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stafeta.cli import exits
from stafeta.config.options import Lake as Settings
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.fork_server import run_stafeta
from tests.pipeline.forked_python import forking_python
from tests.pipeline.processes import Family, send
from tests.pipeline.processes import command as command_line
from tests.pipeline.queries import address, connect
from tests.pipeline.sessions import JVM, QUICK
from tests.pipeline.soak_actors import pools
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def family() -> Iterator[Family]:
    with Family() as one:
        yield one


def command(broker: BrokerProcess, folder: Path, *arguments: str) -> list[str]:
    run = [sys.executable, "-m", "stafeta", "pipeline", *arguments, "--broker", address(broker)]
    settings = [f"lake.warehouse={folder / 'lake'}", "pipeline.trigger=200ms", "archive.every=0s"]
    conf = QUICK | {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JVM.format(folder=folder),
    }
    return [
        *run,
        *(f"--set={one}" for one in settings),
        "--master=local[2]",
        *(f"--conf={name}={value}" for name, value in conf.items()),
    ]


def started(family: Family, line: list[str], output: Path, terminal: int) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=terminal,
            env=environment(family, output.parent),
            start_new_session=True,
        )


def environment(family: Family, folder: Path) -> dict[str, str]:
    return family.environment() | {
        "STAFETA_STATE": str(folder / "state"),
        "PYSPARK_PYTHON": str(forking_python()),
        "PYTHONHASHSEED": "7",  # which the JVM has not
    }


def readings(broker: BrokerProcess, *numbers: float) -> None:
    with connect(broker) as connection:
        connection.publish("upb/hall/temperature", [str(number) for number in numbers], kind="float")


SLOW = """\
import pathlib, time
from stafeta.pipeline import job

@job
def slow(context):
    def take(batch, number):
        pathlib.Path({path!r}).touch()
        time.sleep(600)

    rows = context.spark.read.format("stafeta").option("broker", {broker!r}).option("subscribe", "upb/#").load()
    assert rows.select("offset").collect()
    # Without the settings of the session, as Spark does some tasks of its own accord.
    assert rows._jdf.queryExecution().toRdd().count()
    return context.start(context.stream("upb/#").writeStream.foreachBatch(take))
"""


class Questions:
    """Asks about a broker and a lake, with no Java to be found: only a Spark that runs can answer."""

    def __init__(self, broker: BrokerProcess, folder: Path, family: Family) -> None:
        self._about = [f"--broker={address(broker)}", f"--set=lake.warehouse={folder / 'lake'}"]
        self._environment = environment(family, folder) | {"JAVA_HOME": str(folder / "none")}

    def ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run_stafeta(*words, *self._about, environment=self._environment)


def test_on_a_terminal_jobs_are_seen_live_others_ask_their_spark_and_a_second_ctrl_c_ends_at_once(
    broker: BrokerProcess, tmp_path: Path, family: Family
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(SLOW.format(path=str(begun), broker=address(broker)))
    readings(broker, 1)
    ours, theirs = pty.openpty()
    line = command(broker, tmp_path, "run", str(tmp_path / "slow.py"))
    process = started(family, line, tmp_path / "output", theirs)
    os.close(theirs)
    seen = bytearray()

    def shows(text: str) -> bool:
        with suppress(OSError):  # it has closed it
            os.set_blocking(ours, False)
            seen.extend(os.read(ours, 65536))
        return text.encode() in seen

    wait_until(lambda: shows("slow  running") and begun.exists(), PATIENCE)
    assert pools(process.pid) == 1, "all tasks share their Python processes"
    check_questions(Questions(broker, tmp_path, family), tmp_path / "state" / "spark")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    time.sleep(1.0)  # it waits for the micro-batch: nothing is to happen
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == exits.INTERRUPTED
    wait_until(lambda: not family.members(), PATIENCE)
    os.close(ours)
    assert b"\x1b[1F\x1b[J" in seen  # drawn again in its place
    assert b"Traceback" not in seen


def test_a_spark_that_is_gone_ends_the_run(broker: BrokerProcess, tmp_path: Path, family: Family) -> None:
    """Nothing can be started in it any more, however often it is tried."""
    readings(broker, 1)
    with (tmp_path / "errors").open("wb") as errors:
        line = command(broker, tmp_path, "run", "archive")
        process = started(family, line, tmp_path / "output", errors.fileno())
    lake = Lake(Settings(warehouse=str(tmp_path / "lake")))
    wait_until(lambda: lake.has("messages") and bool(lake.archived()), PATIENCE)
    (jvm,) = [one for one in family.members() if Path([*command_line(one), ""][0]).name == "java"]
    send(jvm, signal.SIGKILL)
    assert process.wait(PATIENCE) == exits.REFUSED
    assert "archive: failed: Spark has ended" in (tmp_path / "errors").read_text()


def check_questions(questions: Questions, folder: Path) -> None:
    """A pipeline that runs answers who has its token, and is asked for nothing else."""
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    count = "SELECT count(*) AS n FROM readings"
    told = questions.ask("sql", "--json", count)
    assert (told.returncode, told.stdout) == (exits.OK, '{"n":1}\n'), told.stderr
    audit = questions.ask("pipeline", "run", "audit")
    assert audit.returncode == exits.OK, audit.stderr
    assert "Starting Spark" not in audit.stderr
    status = json.loads(questions.ask("pipeline", "status", "--json").stdout.splitlines()[-1])
    known = json.loads(file.read_text())
    assert status["connect"] == f"sc://localhost:{known['connect']}"
    assert known["token"] not in "".join(map(read_line, Path("/proc").glob("[0-9]*/cmdline")))

    for words in (("--own",), ("--set=lake.namespace=other",), ("--conf=spark.sql.ansi.enabled=true",)):
        assert "Java" in questions.ask("sql", count, *words).stderr, words
    file.write_text(json.dumps(known | {"token": "wrong"}))
    assert "Java" in questions.ask("sql", count).stderr
    file.write_text("{")
    assert "Java" in questions.ask("sql", count).stderr
    file.write_text(json.dumps(known | {"sql": 1}))
    assert "Java" in questions.ask("sql", count).stderr
    assert not file.exists(), "nobody answers there any more"


def read_line(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
