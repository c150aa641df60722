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
from benchmarks.peers import free_port

_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin")  # where Debian has servers
_PATIENCE = 60.0
_GOING = 2.0  # seconds that its children have to be gone
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


@contextmanager
def running(
    folder: Path, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Starts what `command` makes of a port; gives that port once somebody listens there."""
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
        try:
            if _listens(process, port):
                yield port
                return
        finally:
            _end(process)
    raise BrokerFailed(f"{command(0)[0]} has not started:\n{said.read_text(encoding='utf-8')[-2000:]}")


def _listens(process: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = perf_counter() + _PATIENCE
    while perf_counter() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            sleep(0.02)
        else:
            return True
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """What it keeps is thrown away with its folder: there is nothing that it should put in order."""
    deadline = perf_counter() + _GOING
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while perf_counter() < deadline:  # its children are not ours to wait for
            os.killpg(process.pid, 0)
            sleep(0.005)
    process.wait()
