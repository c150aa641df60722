"""The process of a peer's server: on a folder of its own and a free port of this machine, gone at the end."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.brokers import BrokerFailed
from stafeta.clients.closing import Closing

_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin")  # where Debian has servers
_PATIENCE = 60.0
_GOING = 2.0  # seconds that its children have to be gone
_POLL = 0.01
_ATTEMPTS = 5  # at a port that nobody else takes meanwhile


def find(name: str) -> str | None:
    """The path of a server's command."""
    return shutil.which(name, path=os.pathsep.join([*_PLACES, os.environ.get("PATH", "")]))


@cache
def said_version(path: str, argument: str) -> str:
    """What a command says of its version."""
    said = subprocess.run([path, argument], capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return found[0] if found else "of unknown version"


class Server(Closing):
    """A process that listens on a port. What it keeps is thrown away with its folder: there is nothing that it should
    put in order at its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.port = port
        self.pid = process.pid
        self._process = process

    def listens(self) -> bool:
        """Waits until it takes connections; False where it has ended, or takes too long."""
        deadline = perf_counter() + _PATIENCE
        while perf_counter() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                sleep(_POLL)
            else:
                return True
        return False

    def close(self) -> None:
        deadline = perf_counter() + _GOING
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            while perf_counter() < deadline:  # its children are not ours to wait for
                os.killpg(self.pid, 0)
                sleep(_POLL)
        self._process.wait()


def started(
    folder: Path, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
) -> Server:
    """Starts what `command` makes of a port, and waits until it listens there."""
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "said"
    for _ in range(_ATTEMPTS):
        port = free_port()
        with said.open("wb") as file:
            process = subprocess.Popen(
                command(port),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # so that its children can be ended with it
            )
        server = Server(process, port)
        try:
            if server.listens():
                return server
        except BaseException:
            server.close()
            raise
        server.close()
    raise BrokerFailed(f"{command(0)[0]} has not started:\n{said.read_text(encoding='utf-8')[-2000:]}")


@contextmanager
def running(
    folder: Path, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The port of a server, which is gone afterwards."""
    with started(folder, command, environment) as server:
        yield server.port


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
