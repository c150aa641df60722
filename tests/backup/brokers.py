"""A broker that is backed up while it runs, and loses its folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stafeta.cli.main import main
from tests.brokers import BrokerProcess

DOORS = ("devices", "frames", "flight")


class Restorable:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self.process = BrokerProcess(folder / "data", *options, doors=DOORS)
        self.to = folder / "backups"
        self._lost = folder / "lost"
        self._capsys = capsys

    def command(self, *words: str) -> Any:
        """What a command says in JSON."""
        self._capsys.readouterr()
        code = main([*words, "--json"])
        said = self._capsys.readouterr()
        assert code == 0, said
        return json.loads(said.out)

    def back_up(self, *words: str) -> Any:
        return self.command("backup", str(self.to), "--data", str(self.process.data), *words)

    def lose(self) -> int:
        """The folder is lost, and the last backup restored in its place. Returns the offset at which topics go on."""
        self.process.kill()
        os.rename(self.process.data, self._lost)
        said = self.command("restore", str(self.to), "--data", str(self.process.data))
        assert said["sound"], said
        self.process.start()
        return int(said["restored"]["offset"])
