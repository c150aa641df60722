"""The broker that is measured: a process of its own, as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from time import perf_counter
from types import TracebackType

_LISTENING = re.compile(r"(\w+): listening on (\S+)$")
DOORS = ("zeromq", "devices", "frames", "flight")
_PATIENCE = 600.0  # seconds to start or to leave


class BrokerFailed(Exception):
    """The broker did not start or did not leave."""


class Broker:
    """`stafeta serve` on a folder, on any free ports of this machine, with everything as it is by default.

    Of its doors that of ZeroMQ is open, and those that are named.
    """

    def __init__(self, data: Path, *doors: str, durability: str = "fsync") -> None:
        self.data = data
        self._durability = durability
        self._doors = dict.fromkeys(("zeromq", *doors), "")
        self._process: subprocess.Popen[str] | None = None
        self._drain = threading.Thread()
        self._last_lines: deque[str] = deque(maxlen=20)

    def start(self) -> float:
        """Starts it; returns the seconds until it said that it listens."""
        command = [sys.executable, "-m", "stafeta", "serve", "--data", str(self.data)]
        command += ["--durability", self._durability]
        for door in DOORS:
            command += [f"--{door}", "0" if door in self._doors else "off"]
        start = perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self._process = process
        too_long = threading.Timer(_PATIENCE, process.kill)
        too_long.start()
        try:
            self._await_listening(process)
            took = perf_counter() - start
        except BaseException:
            self.kill()
            raise
        finally:
            too_long.cancel()
        self._drain = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._drain.start()
        return took

    @property
    def address(self) -> str:
        """Where its ZeroMQ door listens."""
        return self._doors["zeromq"]

    def door(self, name: str) -> tuple[str, int]:
        """Where one of its other doors listens, as host and port."""
        host, _, port = self._doors[name].rpartition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM: it finishes what it has begun and leaves."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _await_listening(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        waiting = set(self._doors)
        for line in process.stderr:
            self._last_lines.append(line)
            if found := _LISTENING.search(line.rstrip()):
                self._doors[found[1]] = found[2]
                waiting.discard(found[1])
                if not waiting:
                    return
        process.stderr.close()
        raise BrokerFailed(f"The broker has not started:\n{''.join(self._last_lines)}")

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr:
            self._last_lines.extend(process.stderr)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"The broker has not left:\n{''.join(self._last_lines)}") from None
        finally:
            if self._drain.is_alive():
                self._drain.join()


def environment() -> dict[str, str]:
    """That of a command that is measured: nothing configured, and compiled modules kept as they usually are."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STAFETA_") and name != "PYTHONDONTWRITEBYTECODE"
    }
