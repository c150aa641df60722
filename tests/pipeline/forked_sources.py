"""Sources of streaming queries whose Python processes start at once: forks of one that has imported what each imports.

Spark starts a Python process for the source of each streaming query that is started: 0.85 s of a processor, nearly all
for imports, a hundred times and more in the tests. It is told to start a small program instead of Python. That asks a
host, which has imported everything, for a fork with its environment and its streams. For all other processes, it
becomes Python.

1. The host has a single thread and no state, so that a fork of it is as good as a new process.
2. A fork ends with the program that has asked for it, however that ends, and that with the fork.
"""

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from tests.fork_server import leave

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_IMPORTED: Final = (
    RUNNER,
    "stafeta.clients.flight.connection",
    "stafeta.pipeline.connector.source",
    "stafeta.pipeline.connector.stream",
    "stafeta.pipeline.jobs.batches.reading_source",
)
_LONGEST: Final = 1 << 18  # bytes of an environment
_PROGRAM: Final = """\
#!{python} -IS
import os, sys
words = sys.argv[1:]
if words == ["-m", {runner!r}]:
    import json, socket
    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.connect({place!r})
    socket.send_fds(host, [json.dumps(dict(os.environ)).encode()], [0, 1, 2])
    host.recv(1)
else:
    os.execv({python!r}, [{python!r}, *words])
"""


@contextmanager
def forking(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """The program to be given to Spark for Python, while the host runs."""
    place, program = folder / "sources", folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, runner=RUNNER, place=str(place)))
    program.chmod(0o755)
    command = [sys.executable, "-m", __name__, str(place)]
    with subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
            yield program
        finally:
            host.kill()


def _serve(place: str) -> None:
    """Until whoever has started it closes its input, or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(client)
            client.close()


def _run(client: socket.socket) -> NoReturn:
    environment, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # When the other end is closed, the system sends this process SIGTERM.
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    os.environ.clear()
    os.environ.update(json.loads(environment))
    sys.argv = ["-m"]
    del sys.modules[RUNNER]
    code: str | int | None = None
    try:
        runpy.run_module(RUNNER, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    leave(code)


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    _serve(sys.argv[1])
