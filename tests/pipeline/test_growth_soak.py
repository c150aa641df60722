"""What the soak of growth takes for growth, and that it leaves nothing behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.growth_soak import BOUNDS, Look, wrong_growth
from tests.pipeline.processes import Family
from tests.pipeline.sessions import ROOT
from tests.waiting import PATIENCE, wait_until

STEADY = Look(0.0, 500.0, 900.0, 18, 200, 400, 1.0, 0)


def looks(**growing: float) -> list[Look]:
    """An hour of looks; figures grow by so much a minute, all the time."""
    return [
        STEADY._replace(
            seconds=minute * 60.0,
            **{name: getattr(STEADY, name) + minute * rate for name, rate in growing.items()},
        )
        for minute in range(61)
    ]


def test_what_stays_is_not_taken_for_growth() -> None:
    assert wrong_growth(looks(lag=1), 600.0) == []


@pytest.mark.parametrize(
    ("name", "rate"),
    [("jvm", 4), ("python", 6), ("processes", 1), ("threads", 1), ("files", 154), ("batch", 0.05)],
)
def test_what_grows_all_the_time_is_found(name: str, rate: float) -> None:
    assert name in BOUNDS
    (found,) = wrong_growth(looks(**{name: rate}), 600.0)
    assert found.startswith(f"{name} has grown from ")


def test_what_grows_at_the_beginning_alone_is_not_growth() -> None:
    found = looks(files=100)
    settled = found[10]
    assert (
        wrong_growth([*found[:10], *(settled._replace(seconds=one.seconds) for one in found[10:])], 600.0)
        == []
    )


def test_too_short_a_run_says_nothing() -> None:
    assert wrong_growth(looks()[:12], 600.0) == ["there are only 2 looks after 600 s, which say nothing"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_it_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    """While the broker is being started, by a signal that comes twice."""
    command = [sys.executable, "-m", "tests.pipeline.growth_soak", "--folder", str(tmp_path)]
    with (
        Family() as family,
        subprocess.Popen(command, cwd=ROOT, env=family.environment(), stderr=subprocess.PIPE) as soak,
    ):
        wait_until(lambda: len(family.members()) >= 4)  # it, what forks brokers, a broker and its keeper
        for _ in range(2):
            soak.send_signal(number)
        assert soak.wait(PATIENCE) == 128 + number
        wait_until(lambda: not family.members())
