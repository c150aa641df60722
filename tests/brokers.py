"""A real broker as a process of its own, for tests to start, stop, kill and start again."""

import os
import signal
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stafeta.testing import Broker
from stafeta.testing.broker import Doors, plain_environment
from tests import ports
from tests.fork_server import FORKS, Program
from tests.soundness import assert_sound
from tests.waiting import PATIENCE, wait_until

__all__ = ["IPV6", "BrokerProcess", "Doors", "needs_ipv6"]

IPV6 = True
try:
    with socket.socket(socket.AF_INET6) as _probe:
        _probe.bind(("::1", 0))
except OSError:
    IPV6 = False
needs_ipv6 = pytest.mark.skipif(not IPV6, reason="this machine has no IPv6")


class BrokerProcess(Broker):
    """A fork of a process that has imported everything, since hundreds are started; with ZeroMQ's door always open.

    It is killed at the end, and the folder has to be whole then, unless a test has damaged it. Its ports are held for
    it also while it is away: no other test's broker comes to listen there, and whoever connects is refused."""

    patience = PATIENCE
    _process: Program | None

    def __init__(
        self,
        data: Path,
        *options: str,
        doors: tuple[str, ...] = (),
        hosts: tuple[str, ...] = ("",),
        damaged: bool = False,
    ) -> None:
        super().__init__(data, *options, doors=("zeromq", *doors), hosts=hosts)
        self.damaged = damaged

    def start(self, meanwhile: Callable[[], None] | None = None) -> Self:
        for door, places in self._places.items():
            for host in () if places else self._hosts:
                holder = ports.held(host or "127.0.0.1", datagrams=door == "devices")
                places[host] = holder.getsockname()[1]
                weakref.finalize(self, holder.close)
        return super().start(meanwhile)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal that does not end it. SIGSTOP takes a while: when this returns, it has."""
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            wait_until(self._stands_still)

    def _stands_still(self) -> bool:
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ]
        return set(states) == {"T"}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and not self.damaged:
            assert_sound(self.data)

    def _spawn(self) -> Program:
        words = ["-m", "stafeta", "serve", *self.serve_words()]
        return FORKS.start(words, plain_environment(), read_errors=True)
