"""A short soak of the pipeline: broker, driver and a worker are killed, and audit and counts find nothing wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.pipeline_soak_plan import VICTIMS
from tests.pipeline.processes import Family
from tests.pipeline.sessions import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

_SEED = "27"


def test_audit_and_counts_find_nothing_wrong_though_everybody_is_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.pipeline.pipeline_soak", "--seconds", "10", "--rate", "600"]
    with Family() as family:
        done = subprocess.run(
            [*program, "--kills", "2", "--seed", _SEED, "--folder", str(tmp_path)],
            cwd=ROOT,
            env=family.environment(),
            timeout=280,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert not family.members()
    for victim in VICTIMS:
        assert f"{victim} killed" in done.stdout
    assert done.stdout.startswith(f"seed {_SEED}, ")
    assert done.stdout.endswith(f"seed {_SEED}: audit and counts find nothing wrong\n")
