"""A real broker as a process of its own, for tests to start, stop, kill and start again."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fork_server import FORKS, Program
from tests.waiting import PATIENCE

_LISTENING = re.compile(r"(\w+): listening on (\S+):(\d+)$")
_DOORS = ("devices", "flight", "frames")  # beside ZeroMQ's, which is always open


class BrokerProcess:
    """`stafeta serve` on a folder. Starts on any free ports, and after that always on the same ones."""

    def __init__(self, data: Path, *options: str, doors: tuple[str, ...] = ()) -> None:
        self.data = data
        self.options = options
        self._doors: dict[str, tuple[str, int] | None] = dict.fromkeys(("zeromq", *doors))
        self._process: Program | None = None
        self._told = threading.Condition()
        self._lines: list[str] = []
        self._ended = True
        self._reader = threading.Thread()

    def start(self) -> Self:
        """Starts it and waits until it listens."""
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
        if not found or not places:
            self.kill()
            raise AssertionError(f"the broker does not listen:\n{self.stderr}")
        self._doors.update(places)
        return self

    def kill(self) -> None:
        """SIGKILL: what was not on disk is gone."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """SIGTERM, or SIGINT: drains and leaves. Returns the exit code."""
        return self._end(number)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal that does not end it."""
        os.kill(self.pid, number)

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
    def address(self) -> str:
        """Where its ZeroMQ door listens; the same after a restart."""
        host, port = self.door("zeromq")
        return f"{host}:{port}"

    def door(self, name: str) -> tuple[str, int]:
        """Where a door listens, as host and port; the same after a restart."""
        place = self._doors[name]
        assert place is not None, "the broker has never listened"
        return place

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
        ports = {name: str(place[1] if place else 0) for name, place in self._doors.items()}
        return [word for name in ("zeromq", *_DOORS) for word in (f"--{name}", ports.get(name, "off"))]

    def _listening(self, begin: int) -> dict[str, tuple[str, int]]:
        """Where the doors listen, once all of them do."""
        found = filter(None, map(_LISTENING.search, map(str.rstrip, self._lines[begin:])))
        places = {match[1]: (match[2], int(match[3])) for match in found}
        return places if self._doors.keys() <= places.keys() else {}

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
