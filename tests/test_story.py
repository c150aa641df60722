"""The story is told to its end, and leaves nothing behind however it ends."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

STORY = Path(__file__).parent.parent / "examples" / "story.py"
ESCAPE = "\033["


def test_without_java_the_demo_says_so_and_tells_the_story_to_its_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=STORY.parents[1],
        env=environment(tmp_path) | {"JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("Spark needs Java 17 or newer, and JAVA_HOME has none")
    said = [line.strip() for line in done.stdout.splitlines()]
    assert said.count("$ stafeta get race --client bob --all") == 2
    assert [line for line in said if "crosses the line" in line] == [
        "$ stafeta put race 'Rui crosses the line'",
        "alice gets: Rui crosses the line",
        "Rui crosses the line",
    ]
    assert any(line.startswith("$ kill -9") for line in said)
    assert "each got all of them, in order, once." in done.stdout
    assert ESCAPE not in done.stdout
    assert_nothing_is_left(tmp_path)


def test_an_interrupted_story_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, STORY], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as told:
        assert told.stdout is not None
        for line in told.stdout:
            if "--follow" in line:
                break
        assert processes(tmp_path), "a broker and a client are at work"
        told.send_signal(signal.SIGTERM)
        told.stdout.read()
        assert told.wait() == 143
    assert_nothing_is_left(tmp_path)


def test_on_a_terminal_it_is_coloured_and_can_be_interrupted(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, STORY], env=environment(tmp_path), stdout=theirs) as told:
        os.close(theirs)
        shown = b""
        while b"--follow" not in shown:
            block = read(ours)
            assert block, shown.decode()
            shown += block
        assert processes(tmp_path), "a broker and a client are at work"
        told.send_signal(signal.SIGINT)
        while read(ours):
            pass
        os.close(ours)
        assert told.wait() == 130
    assert ESCAPE in shown.decode()
    assert_nothing_is_left(tmp_path)


def test_another_outcome_is_a_failure(tmp_path: Path) -> None:
    # The same story, but with a broker that keeps nothing from one start to the next.
    story = STORY.read_text(encoding="utf-8").replace('"--data", "log"', '"--data", f"log{self._port}"')
    done = subprocess.run(
        [sys.executable, "-c", story],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "This was not expected" in done.stdout
    assert_nothing_is_left(tmp_path)


def environment(folder: Path) -> dict[str, str]:
    """One in which temporary folders are made in this one."""
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return kept | {"TMPDIR": str(folder)}


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux says that the other side is closed
        return b""


def processes(folder: Path) -> list[psutil.Process]:
    """Those that work in a folder below this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def assert_nothing_is_left(folder: Path) -> None:
    assert not processes(folder)
    assert not list(folder.iterdir())
