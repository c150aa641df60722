"""The demo: what it shows, how it ends, and that nothing is left of it. (Without Java it is tests/test_story.py.)"""

import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import view
from examples.demo.board import Board, Message, Shelf
from examples.demo.fleet import CYCLE, SENSORS, reading
from examples.demo.listeners import Away, Listener
from tests.pipeline.processes import Family
from tests.pipeline.sessions import ROOT
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

_COMMAND = [sys.executable, "-m", "examples.demo"]
_RUN = re.compile(r"([\d,]+) readings sent, \1 in lake and log; ([\d,]+) numbers, \2 in rollups\.")


def environment(family: Family, folder: Path) -> dict[str, str]:
    """One in which temporary folders are made in this one."""
    return family.environment() | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


# --- the real thing


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.slow
def test_what_was_sent_is_in_lake_and_log_and_in_the_rollups(tmp_path: Path) -> None:
    with Family() as family:
        done = subprocess.run(
            [*_COMMAND, "--seconds", "12"],
            env=environment(family, tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert not family.members()
    lines = done.stdout.splitlines()
    assert _RUN.fullmatch(lines[-1])
    assert any("raised   upb/lab/temperature is 3" in line for line in lines)
    assert any(line.endswith(": sound") for line in lines)
    assert "\033[" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)],
)
def test_interrupted_while_spark_starts_it_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with (
        Family() as family,
        subprocess.Popen(
            [*_COMMAND, "--forever"], env=environment(family, tmp_path), stdout=subprocess.PIPE, text=True
        ) as demo,
    ):
        assert demo.stdout is not None
        for line in demo.stdout:
            if "Spark starts" in line:
                break
        assert len(family.members()) > 1, "a broker is at work"
        demo.send_signal(number)
        assert demo.stdout.read() == "\nInterrupted. Nothing is left behind.\n"
        assert demo.wait() == code
        assert not family.members()
    assert not list(tmp_path.iterdir())


# --- its parts


def test_a_sensor_jumps_drifts_and_is_silent_and_comes_back() -> None:
    def said(topic: str, second: float) -> str | None:
        sensor = next(one for one in SENSORS if one.topic == topic)
        return reading(sensor, second, random.Random(1))

    for begin in (0.0, CYCLE):
        assert (
            float(said("upb/lab/temperature", begin + 8) or 0)
            > 30
            > float(said("upb/lab/temperature", begin + 12) or 99)
        )
        assert (
            float(said("upb/cellar/water", begin + 21) or 0)
            > 4.5
            > float(said("upb/cellar/water", begin + 23) or 99)
        )
        assert said("upb/roof/wind", begin + 20) is None
        assert said("upb/roof/wind", begin + 30) is not None


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (40, 10)])
def test_what_is_shown_fits_the_terminal_and_tells_what_happens(width: int, height: int) -> None:
    board = Board()
    board.take([Message("upb/lab/temperature", "float", b"35.125")])
    window = {
        "topic": "upb/lab/co2",
        "count": 25,
        "min": 1.0,
        "mean": 2.0,
        "max": 3.0,
        "end": "2026-11-16T10:15:20Z",
    }
    board.take([Message("rollup/5s/upb/lab/co2", "json", json.dumps(window).encode())] * 30)
    alert = {
        "rule": "hot",
        "topic": "upb/lab/temperature",
        "message": "It is hot.",
        "time": "2026-11-16T10:15:22Z",
    }
    for state in ("raised", "cleared"):
        board.take([Message("alerts/hot/x", "json", json.dumps({**alert, "state": state}).encode())])
    report = {"job": "archive", "state": "running", "rows": 7, "lag": 2, "restarts": 0, "error": ""}
    board.hear([Message("$sys/pipeline/archive", "json", json.dumps(report).encode())])
    board.shelf = Shelf(rows=1234, files=5, size=2048, log=6)
    people = (Listener("ana", "upb/#", "127.0.0.1", 1), Listener("ion", "#", "127.0.0.1", 1, Away(1, 2)))

    lines = view.frame(board, people, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "1 readings" in text
    if height >= 24:
        for told in ("35.125", "running   7 messages, 2 wait", "1,234 messages in 5 files", "ion is away"):
            assert told in text
    if height >= 30:
        for told in ("25 readings", "raised   It is hot.", "cleared  It is hot.", "1 raised, 1 cleared"):
            assert told in text
    assert f"{board.raised} {board.cleared} {board.windows}" == "1 1 30"
    assert board.counted == {"upb/lab/co2": 750}
