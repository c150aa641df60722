"""A broker with users, whose file can be changed while it runs."""

import os
import signal
from pathlib import Path

from stafeta.security import Users
from stafeta.security.rules import Rule
from stafeta.security.users import save
from tests.brokers import BrokerProcess
from tests.waiting import wait_until


def rules(*texts: str) -> tuple[Rule, ...]:
    return tuple(map(Rule.read, texts))


class Guarded:
    """`options` are more of the broker's."""

    def __init__(self, folder: Path, users: Users, *options: str, doors: tuple[str, ...]) -> None:
        self.path = folder / "users.toml"
        self._first = self.users = users
        save(self.path, users)
        known = ("--users", str(self.path), "--durability", "os")
        self.process = BrokerProcess(folder / "data", *known, *options, doors=doors)

    def change(self, users: Users) -> None:
        """Let the broker read another file of users."""
        reloaded = self.process.stderr.count("was reloaded")
        save(self.path, users)
        os.kill(self.process.pid, signal.SIGHUP)
        self.wait_for_more("was reloaded", reloaded)
        self.users = users

    def change_back(self) -> None:
        """Let it have the users that it began with."""
        if self.users is not self._first:
            self.change(self._first)

    def wait_for_more(self, sentence: str, than: int) -> None:
        """Wait until the broker has said this more often."""
        wait_until(lambda: self.process.stderr.count(sentence) > than)
