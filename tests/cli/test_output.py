"""What becomes of output: who has taken it, and where it cannot be written."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stafeta.cli import exits
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.fork_server import FORKS
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

STAFETA = f"{sys.executable} -m stafeta"
_FULL = "stafeta: The output cannot be written: No space left on device.\n"
_CLOSED = "stafeta: The output cannot be written: Bad file descriptor.\n"


def shell(environment: dict[str, str], line: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line as a person types it."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("stafeta", STAFETA, 1)],
        capture_output=True,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A topic with 3,000 messages for this client, which no other test uses."""
    return tmp_path.name


@pytest.fixture
def messages(stafeta: Stafeta, topic: str) -> list[str]:
    stafeta("sub", topic)
    lines = [f"line {number}" for number in range(3000)]
    stafeta("put", topic, "--lines", stdin="\n".join(lines).encode())
    return lines


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker leaves."""
    with BrokerProcess(tmp_path_factory.mktemp("left") / "data") as broker:
        return broker.data


@pytest.mark.parametrize("much", ["--follow", "--all", "--count 3000"])
def test_only_what_the_reader_has_taken_is_acknowledged(
    environment: dict[str, str], stafeta: Stafeta, topic: str, messages: list[str], much: str
) -> None:
    done = shell(environment, f"stafeta get {topic} {much} | head -1")
    assert (done.returncode, done.stdout, done.stderr) == (exits.BROKEN_PIPE, "line 0\n", "")
    # Whoever reads a line at a time has what he has printed, and nothing more.
    done = shell(environment, f"stafeta get {topic} {much} | for n in $(seq 40); do read l; echo $l; done")
    assert done.stdout.splitlines() == messages[1:41]
    assert stafeta("get", topic, "--all").stdout.splitlines() == messages[41:]


def test_what_nobody_takes_is_not_acknowledged(
    environment: dict[str, str], stafeta: Stafeta, topic: str, messages: list[str]
) -> None:
    assert shell(environment, f"stafeta get {topic} | sleep 1").returncode == exits.BROKEN_PIPE
    # A reader that has left is noticed while nothing comes, too.
    assert stafeta("get", topic, "--count", "2999").stdout.splitlines() == messages[:2999]
    assert shell(environment, f"stafeta get {topic} --follow | head -1").returncode == exits.BROKEN_PIPE
    assert stafeta("get", topic).returncode == exits.NOTHING


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "sql --help",
        "put {topic} x",
        "get {topic}",
        "topics",
        "check --data {folder}",
        "serve --check",
        "pipeline list",
        "bench --door zeromq --messages 1",
    ],
)
def test_output_that_cannot_be_written_is_a_sentence(
    environment: dict[str, str], stafeta: Stafeta, topic: str, data_folder: Path, command: str
) -> None:
    if "{topic}" in command:
        stafeta("sub", topic)
        stafeta("put", topic, "x")
    words = command.format(topic=topic, folder=data_folder).split()
    with open("/dev/full", "wb") as full:
        code, said = written(environment, words, full.fileno())
    assert (code, said[-len(_FULL) :], said.count("\n")) == (exits.OUTPUT, _FULL, 1)
    assert written(environment, words, None) == (exits.OUTPUT, _CLOSED)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert written(environment, words, writing) == (exits.BROKEN_PIPE, "")
    finally:
        os.close(writing)
    if command.startswith("get {"):
        assert stafeta("get", topic).stdout == "x\n"


def written(environment: dict[str, str], words: list[str], stdout: int | None) -> tuple[int, str]:
    """The exit code of a command with this output, and what it says."""
    with tempfile.TemporaryFile() as errors:
        program = FORKS.start(["-m", "stafeta", *words], environment, stdout=stdout, stderr=errors.fileno())
        try:
            code = program.wait(PATIENCE)
        finally:
            program.kill()
        return code, os.pread(errors.fileno(), 1 << 16, 0).decode()


def test_a_program_that_has_just_started_says_the_same(environment: dict[str, str]) -> None:
    """The others are forks of one that runs."""
    full = shell(environment, "stafeta --version > /dev/full")
    assert (full.returncode, full.stderr) == (exits.OUTPUT, _FULL)
    closed = shell(environment, "stafeta --version >&-")
    assert (closed.returncode, closed.stderr) == (exits.OUTPUT, _CLOSED)


def test_other_streams_may_be_closed(environment: dict[str, str], topic: str) -> None:
    done = shell(environment, f"stafeta sub {topic} 2>&-")
    assert (done.returncode, done.stdout) == (exits.OK, f"Subscribed to {topic}, after message 0.\n")
    done = shell(environment, "stafeta get nothing/there 2>&-")
    assert (done.returncode, done.stdout) == (exits.REFUSED, "")
    assert shell(environment, "stafeta get nothing/there 2>/dev/full").returncode == exits.REFUSED
    done = shell(environment, f"stafeta put {topic} <&-")
    assert done.returncode == exits.USAGE
    assert done.stderr == "stafeta: Standard input is closed: write what is to be put behind the topic.\n"


def test_unbuffered_output_is_not_held_back(environment: dict[str, str]) -> None:
    script = "import os; from stafeta.cli import streams; streams.prepare(); print('x'); os._exit(0)"
    environment.pop("PYTHONUNBUFFERED", None)
    for options, expected in (([], b""), (["-u"], b"x\n")):
        command = [sys.executable, *options, "-c", script]
        assert subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout == expected
