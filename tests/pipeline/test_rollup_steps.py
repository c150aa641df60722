"""A rollup's micro-batch that dies at each of its steps, one after the other, and is done once."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from stafeta.config import load
from stafeta.pipeline.lake import Lake
from tests.brokers import BrokerProcess
from tests.pipeline import killed_rollup
from tests.pipeline.killed_rollup import STEPS, then
from tests.pipeline.pipeline_soak_settings import command
from tests.pipeline.processes import Family
from tests.pipeline.queries import address
from tests.pipeline.sessions import IMPORTED_AHEAD, ROOT
from tests.pipeline.test_replay_steps import Killed
from tests.pipeline.test_rollup import Hand, at, in_lake, in_topics, sent
from tests.waiting import PATIENCE, wait_until


def die() -> None:
    raise Killed


@pytest.mark.slow
def test_windows_come_once_though_their_micro_batch_dies_at_each_step(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window has a reading of the micro-batch before, and is closed by one of the next."""
    hand = Hand(broker, tmp_path)
    hand.roll(0, ("a", 1), ("b", 2))
    windows: list[tuple[str, str, int]] = []
    for number, (step, (owner, name)) in enumerate(STEPS.items(), 1):
        readings = [(topic, 10.0 * number + second) for topic in ("a", "b") for second in (-3, 1)]
        windows += [(f"rollup/10s/{topic}", at(10 * number - 10), 2) for topic in ("a", "b")]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, then(getattr(owner, name), die))
            with pytest.raises(Killed):
                hand.roll(number, *readings)
        hand.roll(number, *readings)
        assert in_lake(hand.lake) == in_topics(broker) == sorted(windows), step
    assert len(windows) == 2 * len(STEPS)


def test_one_micro_batch_dies_at_each_step_one_after_the_other(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(broker, tmp_path)
    hand.roll(0, ("a", 1))
    for step, (owner, name) in STEPS.items():
        if step == "merged":
            continue  # what is committed to the lake is not committed again
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, then(getattr(owner, name), die))
            with pytest.raises(Killed):
                hand.roll(1, ("a", 2), ("a", 11))
        if step == "staged":
            broker.restart()
    hand.roll(1, ("a", 2), ("a", 11))
    hand.roll(2, ("a", 12), ("a", 21))
    assert (
        in_lake(hand.lake) == in_topics(broker) == [("rollup/10s/a", at(0), 2), ("rollup/10s/a", at(10), 2)]
    )


@pytest.mark.soak
@pytest.mark.spark
def test_windows_come_once_though_the_driver_is_killed_at_each_step(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """By SIGKILL, with what has been published since the one before: the windows are those of all readings. (That the
    broker's folder is whole is looked at when it ends.)"""
    file = tmp_path / "stafeta.toml"
    sections: dict[str, dict[str, object]] = {
        "lake": {"warehouse": str(tmp_path / "lake")},
        "pipeline": {"broker": address(broker), "checkpoints": str(tmp_path / "checkpoints")},
        "rollup": {"sizes": ["10s"], "delay": "0s"},
    }
    file.write_text(
        "".join(
            f"[{section}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
            for section, options in sections.items()
        )
    )
    expected: Counter[tuple[str, str]] = Counter()

    def publish(number: int) -> None:
        for topic in ("upb/a", "upb/b"):
            readings = [(20.0 * number + second, second) for second in (1, 2, 12)]
            sent(broker, topic, *readings)
            expected.update((f"rollup/10s/{topic}", at(second - second % 10)) for second, _ in readings)

    with Family() as family:
        environment = family.environment() | {"PYTHONPATH": f"{ROOT}:{IMPORTED_AHEAD}"}

        def run(*words: str, step: str = "") -> "subprocess.CompletedProcess[str]":
            line = command(tmp_path, file, *words)
            if step:
                line[1:3] = ["-m", killed_rollup.__name__, step]
            done = subprocess.run(
                line,
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE,
                check=False,
            )
            wait_until(lambda: not family.members(), PATIENCE)
            return done

        for number, step in enumerate(STEPS):
            publish(number)
            done = run("rollup", "--once", step=step)
            assert done.returncode == -signal.SIGKILL, (step, done.stdout, done.stderr)
        publish(len(STEPS))
        for words in (("rollup", "--once"), ("archive", "--once"), ("audit",)):
            done = run(*words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert done.stdout.endswith(": sound\n")
    windows = sorted((topic, start, count) for (topic, start), count in expected.items())
    assert in_lake(Lake(load(str(file)).lake)) == in_topics(broker) == windows
