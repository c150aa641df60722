"""A broker as a process of its own, to start, stop, kill and start again.

1. It listens on free ports, and after the first start always on the same ones, so that clients find it again.
2. It takes nothing from the environment but what every program does: no `STAFETA_…` configures it.
3. It ends with the process that has started it, also where that is killed.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol, Self

from stafeta.addresses import Address
from stafeta.clients.closing import Closing
from stafeta.errors import StafetaError
from stafeta.testing.host import TEMPORARY

DOORS: Final = ("zeromq", "devices", "frames", "flight", "http")
_LISTENING: Final = re.compile(r"(\w+): listening on (?:tcp://)?\[?([^\]\s]+)\]?:(\d+)$")
_TAKEN: Final = "Address already in use"
_PAUSE: Final = 0.1  # seconds between two tries, or two looks at something else


class BrokerFailed(StafetaError):
    """The broker has not started, or not left."""


class Process(Protocol):
    """What a broker needs of the process that it runs in."""

    @property
    def stderr(self) -> IO[str] | None: ...
    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    def kill(self) -> None: ...


class Doors:
    """Where clients find a broker: on one of the hosts that it listens on."""

    def __init__(self, data: Path, places: dict[str, dict[str, int]], host: str, through: str = "") -> None:
        self.data = data
        self._places = places  # ports, by door and by host
        self._host = host
        self._through = through

    @property
    def address(self) -> str:
        """Of the ZeroMQ door, for `stafeta.Client`; the same after a restart."""
        return f"tcp://{Address(*self.door('zeromq'))}"

    @property
    def flight(self) -> str:
        """Of the Flight door, for `stafeta.connect`; the same after a restart."""
        return f"grpc://{Address(*self.door('flight'))}"

    def door(self, name: str) -> tuple[str, int]:
        """Host and port of a door; the same after a restart."""
        places = self._places.get(name)
        if not places:
            raise BrokerFailed(f"The {name} door is not open; a broker opens the doors that it is made with.")
        host = self._host or next(iter(places))
        return self._through or host, places[host]

    def at(self, host: str, through: str = "") -> "Doors":
        """The same broker, on another of its hosts. Where that stands for many, `through` is the one to go to."""
        return Doors(self.data, self._places, host, through)


class Broker(Doors, Closing):
    """`stafeta serve` on a folder, with some doors open; the options are those of the command, such as
    `"--durability", "os"` or `"--set", "zeromq.max_frame=1M"`. Without a folder it has a temporary one.

    `with` starts it and kills it, which costs it nothing that it has acknowledged, and removes a temporary folder.
    Raises `BrokerFailed`, with what the broker has said, where it does not start or does not leave.
    """

    patience: float = 60.0
    """Seconds to start, and to leave."""

    def __init__(
        self,
        data: Path | str | None = None,
        *options: str,
        doors: Sequence[str] = DOORS,
        hosts: Sequence[str] = ("",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """An empty host is that of the option `--host`, 127.0.0.1."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="stafeta-broker-", ignore_cleanup_errors=True
            )
            data = self._temporary.name
        super().__init__(Path(data), {door: {} for door in doors}, hosts[0])
        self.options = options
        self._hosts = hosts
        self._environment = plain_environment() if environment is None else environment
        self._process: Process | None = None
        self._news = threading.Condition()
        self._lines: list[str] = []
        self._ended = True
        self._reader = threading.Thread()

    def start(self, meanwhile: Callable[[], None] | None = None) -> Self:
        """Start it, and wait until it listens; `meanwhile` is called several times a second. While it was away,
        somebody's connection may have got one of its ports: it is started again when that has gone."""
        deadline = time.monotonic() + self.patience
        while not self._started(deadline, meanwhile):
            time.sleep(_PAUSE)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """SIGTERM, or SIGINT: it finishes what it has begun and leaves. Returns the exit code."""
        return self._end(number)

    def kill(self) -> None:
        """SIGKILL: what was not on disk is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Kill it and start it again."""
        self.kill()
        return self.start()

    def close(self) -> None:
        """Kill it, and remove its folder if that is a temporary one. May be repeated."""
        try:
            self.kill()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("The broker does not run.")
        return self._process.pid

    @property
    def stderr(self) -> str:
        """Everything that it has written on standard error, over all starts."""
        with self._news:
            return "".join(self._lines)

    def wait_for_line(self, part: str, patience: float | None = None) -> str:
        """Wait until a line on standard error has this in it; returns the line."""

        def line() -> str | None:
            return next((line for line in self._lines if part in line), None)

        with self._news:
            self._news.wait_for(
                lambda: line() is not None or self._ended, self.patience if patience is None else patience
            )
            found = line()
        if found is None:
            raise BrokerFailed(f"No line of the broker's has {part!r}:\n{self.stderr}")
        return found

    def serve_words(self) -> list[str]:
        """What `stafeta serve` is called with."""
        places = {
            door: ",".join(
                str(Address(host, port)) for host, port in (ports or dict.fromkeys(self._hosts, 0)).items()
            )
            for door, ports in self._places.items()
        }
        doors = [word for door in DOORS for word in (f"--{door}", places.get(door, "off"))]
        return ["--data", str(self.data), *doors, *self.options]

    def _spawn(self) -> Process:
        temporary = [] if self._temporary is None else [TEMPORARY, self._temporary.name]
        return subprocess.Popen(
            [sys.executable, "-m", "stafeta.testing.host", *temporary, *self.serve_words()],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            env=self._environment,
            process_group=0,  # Ctrl-C is for whoever has started it
        )

    def _started(self, deadline: float, meanwhile: Callable[[], None] | None) -> bool:
        """False where a port that it had before is taken."""
        if self._process is not None:
            raise BrokerFailed("The broker runs already.")
        with self._news:
            begin = len(self._lines)
            self._ended = False
        self._process = self._spawn()
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        try:
            places = self._await_listening(begin, deadline, meanwhile)
        except BaseException:
            self.kill()
            raise
        if places:
            self._places.update(places)
            return True
        self.kill()
        said = "".join(self._lines[begin:])
        if _TAKEN in said and any(self._places.values()) and time.monotonic() < deadline:
            return False
        raise BrokerFailed(f"The broker has not started:\n{said}".rstrip())

    def _await_listening(
        self, begin: int, deadline: float, meanwhile: Callable[[], None] | None
    ) -> dict[str, dict[str, int]]:
        """Where the doors listen, once all of them do; nothing where they will not."""
        pause = None if meanwhile is None else _PAUSE
        while True:
            with self._news:
                left = deadline - time.monotonic()
                self._news.wait_for(
                    lambda: self._ended or self._listening(begin), left if pause is None else min(left, pause)
                )
                places = self._listening(begin)
                if places or self._ended or time.monotonic() >= deadline:
                    return places
            if meanwhile is not None:
                meanwhile()

    def _listening(self, begin: int) -> dict[str, dict[str, int]]:
        places: dict[str, dict[str, int]] = {}
        for match in filter(None, map(_LISTENING.search, map(str.rstrip, self._lines[begin:]))):
            places.setdefault(match[1], {})[match[2]] = int(match[3])
        everywhere = all(len(places.get(door, ())) == len(self._hosts) for door in self._places)
        return places if everywhere else {}

    def _read(self, process: Process) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        process.stderr.close()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(self.patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(
                f"The broker has not left within {self.patience:g} s:\n{self.stderr}"
            ) from None
        finally:
            if isinstance(process, subprocess.Popen) and process.stdin is not None:
                process.stdin.close()
            self._reader.join()


def plain_environment() -> dict[str, str]:
    """This process's, without what configures a broker."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
