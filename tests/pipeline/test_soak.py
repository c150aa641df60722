"""A short soak: everybody who takes part in a copy is killed, and every message arrives once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.processes import Family
from tests.pipeline.sessions import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

_SEED = "10"


def test_every_message_arrives_once_though_everybody_is_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.pipeline.soak", "--kills", "5", "--seed", _SEED, "--rate", "200"]
    with Family() as family:
        done = subprocess.run(
            [*program, "--folder", str(tmp_path)],
            cwd=ROOT,
            env=family.environment(),
            timeout=280,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert not family.members()
    for victim in ("producer", "broker", "driver", "worker"):
        assert f"{victim} killed" in done.stdout
    assert done.stdout.startswith(f"seed {_SEED}, ")
    assert done.stdout.endswith(f"seed {_SEED}: every message arrived once\n")
