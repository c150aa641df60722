import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.brokers import BrokerProcess
from tests.waiting import PATIENCE


class Stafeta(Protocol):
    """Runs `stafeta` with these arguments to its end."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[str]": ...


@pytest.fixture(scope="session")
def cli_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all commands that do it no harm."""
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as process:
        yield process


@pytest.fixture
def environment(cli_broker: BrokerProcess, tmp_path: Path) -> dict[str, str]:
    """What tells commands of their broker, and gives each test clients of its own."""
    return os.environ | {"STAFETA_BROKER": cli_broker.address, "STAFETA_STATE": str(tmp_path / "state")}


@pytest.fixture
def stafeta(environment: dict[str, str]) -> Stafeta:
    def run(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", "stafeta", *arguments],
            input=stdin,
            capture_output=True,
            env=environment,
            timeout=PATIENCE,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="backslashreplace"), done.stderr.decode()
        )

    return run
