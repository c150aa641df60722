"""`stafeta sql`: the command, on a terminal; tests/pipeline/test_connect.py has it in a pipe."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import stafeta as package
from stafeta.cli import exits
from tests.cli.conftest import Stafeta
from tests.cli.terminals import Terminal
from tests.cli.test_spark import MISSING, run, without_pyspark
from tests.pipeline.processes import CommandLines, Family, below
from tests.pipeline.sessions import settings
from tests.pipeline.test_secure import holding
from tests.secured import Place
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker that holds two topics, has TLS, and lets nobody in without a token."""
    place = Place(tmp_path_factory.mktemp("secured"), "--set", 'topics."#".keep=36500d')
    with place.broker:
        tls = package.Tls(place.authority.roots)
        with package.connect(place.broker.flight, token=place.token, tls=tls) as connection:
            connection.publish("hall/a", ["20.5", "21.5"], kind="float")
            connection.publish("b", ["text"])
        yield place


@pytest.fixture
def environment(tmp_path: Path, place: Place) -> Iterator[dict[str, str]]:
    """This broker, and a lake that is not there. Nothing that was started is left behind."""
    with Family() as family:
        yield family.environment() | {
            "STAFETA_CA": str(place.authority.roots),
            "STAFETA_LAKE_WAREHOUSE": str(tmp_path / "lake"),
            "STAFETA_PIPELINE_BROKER": place.broker.flight,
            "STAFETA_STATE": str(tmp_path / "state"),
            "STAFETA_TOKEN": place.token,
        }
        wait_until(lambda: not family.members())


# --- what cannot be done


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-- nothing",), "There is no statement; write one"),
        (("--limit", "-1", "SELECT 1"), "--limit: -1 is not a number of rows"),
        (("--broker", "tcp://127.0.0.1:9001", "SELECT 1"), "--broker: 'tcp://127.0.0.1:9001' is no address"),
        (("--parquet", "nowhere/at/all", "SELECT 1"), "--parquet: nowhere/at/all is no place for a file."),
        (("--conf", "memory=1g", "SELECT 1"), "--conf memory=1g: write it as spark.NAME=VALUE"),
        (("--set", "lake.warehose=x", "SELECT 1"), "--set: lake.warehose: no option has this name."),
        (("--config", "nowhere.toml", "SELECT 1"), "The configuration nowhere.toml cannot be read"),
    ],
)
def test_wrong_arguments_are_one_sentence(stafeta: Stafeta, arguments: tuple[str, ...], why: str) -> None:
    done = stafeta("sql", *arguments)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert done.stderr.startswith(f"stafeta: {why}")


def test_without_pyspark_it_is_one_sentence(tmp_path: Path) -> None:
    python, environment = without_pyspark(tmp_path)
    done = run(python, "-m", "stafeta", "sql", "SELECT 1", environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (exits.USAGE, "", MISSING)


# --- what it does


@pytest.mark.slow
@pytest.mark.spark
def test_on_a_terminal_there_is_a_conversation_which_shows_no_token(
    environment: dict[str, str], place: Place, tmp_path: Path
) -> None:
    (tmp_path / "spark").mkdir()
    small = [f"--conf={name}={value}" for name, value in settings(tmp_path / "spark").items()]
    shell = Terminal(environment, "sql> ", "sql", "--master", "local[2]", *small)
    try:
        with CommandLines(lambda: below(shell.process.pid), pause=0.2) as lines:
            shell.read_until("sql> ")
            shell.type("SELECT topic,\n")
            shell.read_until("...> ")
            table = shell.enter("count(payload) AS n FROM messages GROUP BY topic ORDER BY topic;")
        assert lines.having("java")
        assert not lines.having(place.token)
        rows = [["topic", "n"], ["------", "-"], ["b", "1"], ["hall/a", "2"]]
        assert [line.split() for line in table[:4]] == rows
        assert table[4].startswith("2 rows, ")
        told = ["stafeta: Syntax error at or near 'SELEC'. (line 1, column 1)", "  SELEC 1", "  ^"]
        assert shell.enter("SELEC 1;") == told
        assert ["decimal", "decimal(38,18)", "NULL"] in [line.split() for line in shell.enter("\\d readings")]
        assert shell.enter("help")[0].startswith("A statement ends with a semicolon")
        for delay in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):  # while it is planned, and while its tasks run
            interrupt_a_query(shell, delay)
        shell.type("half a sta\n")
        shell.read_until("...> ")
        shell.interrupt()
        shell.read_until("sql> ")
        # Its tasks would wait for ever behind those of the one that was cancelled.
        assert "1 row, " in shell.enter("SELECT count(*) FROM range(3);")[-1]
        shell.type("\x04")
        assert shell.process.wait(PATIENCE) == exits.OK
    finally:
        shell.close()
    history = Path(environment["STAFETA_STATE"]) / "default" / "sql-history"
    assert history.read_text().splitlines()[:1] == ["SELECT topic,"]
    assert place.token not in shell.shown
    assert not holding(tmp_path, place.token)


def interrupt_a_query(shell: Terminal, delay: float) -> None:
    """Ctrl-C, so many seconds after Spark was asked something that would take days."""
    shell.type(
        "SELECT 1; SELECT count(*) FROM range(1000000000000) WHERE hash(id) = 1 AND hash(id, 1) = 2;\n"
    )
    shell.read_until("1 row, ")
    time.sleep(delay)
    shell.process.send_signal(signal.SIGINT)
    assert [line for line in shell.read_until("sql> ").splitlines()[1:] if line] == ["Cancelled."]
