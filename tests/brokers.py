"""A real broker as a process of its own, for tests to start, stop, kill and start again."""

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stafeta.addresses import Address
from tests.fork_server import FORKS, Program
from tests.soundness import assert_sound
from tests.waiting import PATIENCE, wait_until

_LISTENING = re.compile(r"(\w+): listening on (?:tcp://)?\[?([^\]\s]+)\]?:(\d+)$")
IPV6 = True
try:
    with socket.socket(socket.AF_INET6) as _probe:
        _probe.bind(("::1", 0))
except OSError:
    IPV6 = False
needs_ipv6 = pytest.mark.skipif(not IPV6, reason="this machine has no IPv6")
_DOORS = ("devices", "flight", "frames")  # beside ZeroMQ's, which is always open


class Doors:
    """Where clients find a broker: on one of the hosts that it listens on."""

    def __init__(self, data: Path, places: dict[str, dict[str, int]], host: str, through: str = "") -> None:
        self.data = data
        self._places = places  # ports, by door and by host
        self._host = host
        self._through = through

    @property
    def address(self) -> str:
        """Where its ZeroMQ door listens; the same after a restart."""
        return f"tcp://{Address(*self.door('zeromq'))}"

    def door(self, name: str) -> tuple[str, int]:
        """Where a door listens, as host and port; the same after a restart."""
        places = self._places[name]
        assert places, "the broker has never listened"
        host = self._host or next(iter(places))
        return self._through or host, places[host]

    def at(self, host: str, through: str = "") -> "Doors":
        """The same broker, on another of its hosts. Where that stands for many, `through` is the one to go to."""
        return Doors(self.data, self._places, host, through)


class BrokerProcess(Doors):
    """`stafeta serve` on a folder. Starts on any free ports of its hosts, and after that always on the same ones.

    It is killed at the end, and the folder has to be whole then, unless a test has damaged it."""

    def __init__(
        self,
        data: Path,
        *options: str,
        doors: tuple[str, ...] = (),
        hosts: tuple[str, ...] = ("",),
        damaged: bool = False,
    ) -> None:
        super().__init__(data, {door: {} for door in ("zeromq", *doors)}, hosts[0])
        self.damaged = damaged
        self.options = options
        self._hosts = hosts  # an empty one is that of the options
        self._process: Program | None = None
        self._told = threading.Condition()
        self._lines: list[str] = []
        self._ended = True
        self._reader = threading.Thread()

    def start(self) -> Self:
        """Starts it and waits until it listens. While it was away, somebody's connection may have got one of its ports,
        as any free one: it is started again when that has gone."""
        wait_until(self._started, PATIENCE)
        return self

    def _started(self) -> bool:
        """False where a port that it had before is taken."""
        assert self._process is None, "the broker runs already"
        with self._told:
            begin = len(self._lines)
            self._ended = False
        self._process = self._spawn()
        self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._reader.start()
        with self._told:
            found = self._told.wait_for(lambda: self._ended or self._listening(begin), PATIENCE)
            places = self._listening(begin)
            told = "".join(self._lines[begin:])
        if not found or not places:
            self.kill()
            if "Address already in use" in told and any(self._places.values()):
                return False
            raise AssertionError(f"the broker does not listen:\n{self.stderr}")
        self._places.update(places)
        return True

    def kill(self) -> None:
        """SIGKILL: what was not on disk is gone."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """SIGTERM, or SIGINT: drains and leaves. Returns the exit code."""
        return self._end(number)

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

    def restart(self) -> Self:
        """Kills it and starts it again."""
        self.kill()
        return self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def stderr(self) -> str:
        """Everything that it has written on standard error, over all starts."""
        with self._told:
            return "".join(self._lines)

    def wait_for_line(self, part: str, patience: float = PATIENCE) -> str:
        """Waits until a line on standard error has this in it; returns the line."""

        def line() -> str | None:
            return next((line for line in self._lines if part in line), None)

        with self._told:
            self._told.wait_for(lambda: line() is not None or self._ended, patience)
            found = line()
        assert found is not None, f"no line has {part!r}:\n{self.stderr}"
        return found

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if kind is None and not self.damaged:
            assert_sound(self.data)

    def _spawn(self) -> Program:
        words = ["-m", "stafeta", "serve", "--data", str(self.data), *self.listening_options(), *self.options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
        return FORKS.start(words, environment, read_errors=True)

    def _listen(self, process: Program) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._told:
                self._lines.append(line)
                self._told.notify_all()
        process.stderr.close()
        with self._told:
            self._ended = True
            self._told.notify_all()

    def listening_options(self) -> list[str]:
        """Which doors are open, and on which ports."""
        places = {
            door: [
                str(Address(host, port)) for host, port in (ports or dict.fromkeys(self._hosts, 0)).items()
            ]
            for door, ports in self._places.items()
        }
        return [
            word
            for door in ("zeromq", *_DOORS)
            for word in (f"--{door}", ",".join(places.get(door, ["off"])))
        ]

    def _listening(self, begin: int) -> dict[str, dict[str, int]]:
        """Where the doors listen, once all of them do."""
        places: dict[str, dict[str, int]] = {}
        for match in filter(None, map(_LISTENING.search, map(str.rstrip, self._lines[begin:]))):
            places.setdefault(match[1], {})[match[2]] = int(match[3])
        everywhere = all(len(places.get(door, ())) == len(self._hosts) for door in self._places)
        return places if everywhere else {}

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker has not left within {PATIENCE:g} s:\n{self.stderr}") from None
        finally:
            self._reader.join()
        return code
