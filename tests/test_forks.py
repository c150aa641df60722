"""Clients that are open while a program forks: the child is told, and the parent does not notice."""

import subprocess
import sys
from pathlib import Path

import stafeta
from tests.brokers import BrokerProcess
from tests.forking_program import ROUNDS
from tests.waiting import PATIENCE


def test_a_child_is_told_and_the_parent_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", doors=("flight",)) as broker:
        host, port = broker.door("flight")
        folder = tmp_path / "folder"
        words = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.forking_program"]
        words += [broker.address, f"grpc://{host}:{port}", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        used = [line for line in lines if not line.startswith("Forked: ")]
        assert used == [
            *(f"{n} {n} [b'{n}']" for n in range(ROUNDS)),
            "True",
            f"{ROUNDS} {ROUNDS} [b'{ROUNDS}']",
        ]
        told = [line for line in lines if line.startswith("Forked: ")]
        assert len(told) == 9
        assert all("was made by process" in line for line in told[:2])
        assert all("which had used Arrow Flight" in line for line in told[2:])
        with stafeta.Client(broker.address, folder) as client:
            assert client.count("z") == ROUNDS + 1
            assert client.get("z") is None
