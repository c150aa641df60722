import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.brokers import BrokerProcess
from tests.fork_server import run_stafeta


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
        return run_stafeta(*arguments, environment=environment, stdin=stdin)

    return run
