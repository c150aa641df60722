"""Spark's Python processes start at once: forks of one that has imported what each imports.

Spark starts a Python process for each streaming query and a daemon for each kind of work (reading, planning, writing,
committing …), and a Connect server starts one for each `foreachBatch`: half a second to two seconds of a processor
each, nearly all for imports, some hundred times in the tests. It is told to start a small program instead of Python.
That asks a host, which has imported everything, for a fork with its arguments, environment and streams. For all other
processes, it becomes Python.

1. The host has no state, so that a fork of it is as good as a new process. A process of tests has one, for all of its
   Sparks.
2. A fork ends with the program that has asked for it, however that ends, and that with the fork.
3. A fork has the command line, the parent and, as others see it, the environment of the host: it is not for tests that
   look for Spark's processes.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from tests.fork_server import leave

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
FOREACH: Final = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
FORKED: Final = ("pyspark.daemon", RUNNER, FOREACH)
_IMPORTED: Final = (
    *FORKED,
    "pyspark.worker",
    *(
        f"pyspark.sql.worker.{name}"
        for name in (
            "commit_data_source_write",
            "create_data_source",
            "data_source_pushdown_filters",
            "lookup_data_sources",
            "plan_data_source_read",
            "python_streaming_sink_runner",
            "write_into_data_source",
        )
    ),
    "stafeta.clients.flight.connection",
    "stafeta.pipeline.connector.batch_reader",
    "stafeta.pipeline.connector.file_source",
    "stafeta.pipeline.connector.reading",
    "stafeta.pipeline.connector.sink",
    "stafeta.pipeline.connector.source",
    "stafeta.pipeline.connector.staging",
    "stafeta.pipeline.connector.stream",
    "stafeta.pipeline.jobs.alerts",
    "stafeta.pipeline.jobs.archive",
    "stafeta.pipeline.jobs.batches.reading_source",
    "stafeta.pipeline.jobs.rollup",
)
_LONGEST: Final = 1 << 18  # bytes of a request
_PROGRAM: Final = """\
#!{python} -IS
import os, sys
words = sys.argv[1:]
if words[:1] == ["-m"] and words[1] in {forked!r}:
    import json, socket
    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.connect({place!r})
    request = dict(words=words[1:], environment=dict(os.environ), folder=os.getcwd())
    socket.send_fds(host, [json.dumps(request).encode()], [0, 1, 2])
    host.recv(1)
else:
    os.execv({python!r}, [{python!r}, *words])
"""


@cache
def forking_python() -> Path:
    """The program to be given to Spark for Python. Its host runs until this process ends."""
    from tests.pipeline.sessions import environment

    folder = Path(tempfile.mkdtemp(prefix="stafeta-forks-"))
    place, program = folder / "host", folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, forked=FORKED, place=str(place)))
    program.chmod(0o755)
    host = subprocess.Popen(
        [sys.executable, "-m", __name__, str(place)],
        env=os.environ | environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(_end, host)
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    return program


def _end(host: "subprocess.Popen[bytes]") -> None:
    host.communicate()  # which closes its input


def _serve(place: str) -> None:
    """Until whoever has started it closes its input, or is gone. Then the folder of the place goes, too."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(128)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _take(client)
            client.close()
    shutil.rmtree(Path(place).parent, ignore_errors=True)


def _take(client: socket.socket) -> NoReturn:
    request, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # When the other end is closed, the system sends this process SIGTERM.
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    _run(**json.loads(request))


def _run(words: list[str], environment: Mapping[str, str], folder: str) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-m", *words[1:]]
    del sys.modules[words[0]]
    code: str | int | None = None
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    leave(code)


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    _serve(sys.argv[1])
