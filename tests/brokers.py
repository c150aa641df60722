"""A real broker as a process of its own, for tests to start, stop, kill and start again."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_LISTENING = re.compile(r"zeromq: listening on (tcp://\S+):(\d+)")
_PATIENCE = 30.0


class BrokerProcess:
    """`stafeta serve` on a folder. Starts on any free port, and after that always on the same one."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self._port = 0
        self._address = ""
        self._process: subprocess.Popen[str] | None = None
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
            found = self._told.wait_for(lambda: self._ended or self._listening(begin), _PATIENCE)
            match = self._listening(begin)
        if not found or match is None:
            self.kill()
            raise AssertionError(f"the broker does not listen:\n{self.stderr}")
        self._address, self._port = f"{match[1]}:{match[2]}", int(match[2])
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
        assert self._address, "the broker has never listened"
        return self._address

    @property
    def stderr(self) -> str:
        """Everything that it has written on standard error, over all starts."""
        with self._told:
            return "".join(self._lines)

    def wait_for_line(self, part: str, patience: float = _PATIENCE) -> str:
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

    def _spawn(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "stafeta", "serve", "--data", str(self.data)]
        return subprocess.Popen(
            [*command, "--zeromq", str(self._port), *self.options],
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")},
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._told:
                self._lines.append(line)
                self._told.notify_all()
        process.stderr.close()
        with self._told:
            self._ended = True
            self._told.notify_all()

    def _listening(self, begin: int) -> re.Match[str] | None:
        return next(filter(None, map(_LISTENING.search, self._lines[begin:])), None)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker has not left within {_PATIENCE:g} s:\n{self.stderr}") from None
        finally:
            self._reader.join()
        return code
