"""A disk that is full, at every step of commits, merges and sweeps: nothing is lost, and it goes on with room."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import full_disk
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount(place: Path) -> bool:
    mount = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", str(place)]
    try:
        return subprocess.run(mount, capture_output=True, check=False, timeout=PATIENCE).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_nothing_is_lost_on_a_full_disk_and_the_lake_goes_on_when_there_is_room(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("a file system of its own cannot be mounted here")
    done = subprocess.run(
        [*OWN_MOUNTS, sys.executable, "-m", full_disk.__name__, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) of (\d+) failed, (\d+) messages$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    failed, rounds, messages = map(int, found.groups())
    assert 3 <= failed < rounds, done.stdout  # some had too little room, and some enough
    assert messages >= 3 * rounds
