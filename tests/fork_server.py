"""Python programs that start at once: forks of a process that has imported what brokers and commands import.

These take up to half a second of a processor to import their modules, and the tests start hundreds of them. Here that
is done once. A program has arguments, an environment and streams of its own, and ends as any other does.

1. The server has a single thread and no state, so that a fork of it is as good as a new process.
2. Between it and each program is a keeper, which waits for the program and tells how it has ended.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from tests.waiting import PATIENCE

_ROOT: Final = Path(__file__).parents[1]
_LONGEST: Final = 1 << 20  # bytes of a request
_NUMBER: Final = 12  # characters of one that is told


class Program:
    """A program that was started; what `subprocess.Popen` would be for it."""

    def __init__(self, report: socket.socket, stderr: IO[str] | None) -> None:
        self.stderr = stderr
        self._report = report
        self._status: int | None = None
        self.pid = int(report.recv(_NUMBER))

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that has ended it; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            self._report.settimeout(timeout)
            try:
                self._status = os.waitstatus_to_exitcode(int(self._report.recv(_NUMBER)))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a forked program", timeout or 0) from None
            self._report.close()
        return self._status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the server has yet to say so
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: int | None = 1,
        stderr: int = 2,
        read_errors: bool = False,
    ) -> Program:
        """Runs `python WORDS…`: a file, or -m and a module, and its arguments. Its streams are descriptors, which stay
        the caller's to close; without stdin, it reads nothing, and without stdout, it finds that closed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nothing = os.open(os.devnull, os.O_RDONLY)
        reading, errors = os.pipe() if read_errors else (-1, os.dup(stderr))
        try:
            closed = [1] if stdout is None else []
            request = json.dumps(
                {
                    "words": list(words),
                    "environment": dict(environment),
                    "folder": os.getcwd(),
                    "closed": closed,
                }
            )
            streams = [nothing if stdin is None else stdin, nothing if stdout is None else stdout, errors]
            with self._lock:
                socket.send_fds(self._connected(), [request.encode()], [theirs.fileno(), *streams])
        finally:
            theirs.close()
            os.close(nothing)
            os.close(errors)
        return Program(ours, os.fdopen(reading, errors="backslashreplace") if read_errors else None)

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], stdin: bytes = b""
    ) -> "subprocess.CompletedProcess[str]":
        """Runs it to its end, as `subprocess.run` would; what it reads comes through a pipe."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                program = self.start(
                    words, environment, stdin=reading, stdout=output.fileno(), stderr=errors.fileno()
                )
            finally:
                os.close(reading)
            feeding = threading.Thread(target=_feed, args=(writing, stdin))
            feeding.start()
            try:
                code = program.wait(PATIENCE)
            finally:
                program.kill()
                feeding.join()
            found = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (output, errors)]
        return subprocess.CompletedProcess(
            words, code, *(one.decode(errors="backslashreplace") for one in found)
        )

    def _connected(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            atexit.register(self._end, server)
        return self._channel

    def _end(self, server: subprocess.Popen[bytes]) -> None:
        assert self._channel is not None
        self._channel.close()
        server.wait()


FORKS: Final = ForkServer()


def run_stafeta(
    *arguments: str, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> "subprocess.CompletedProcess[str]":
    """Runs `stafeta` with these arguments to its end."""
    return FORKS.run(["-m", "stafeta", *arguments], os.environ if environment is None else environment, stdin)


def _feed(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(pipe, "wb") as file:
        file.write(data)


def _serve(channel: socket.socket) -> None:
    """Until whoever has started it closes the channel, or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 4)
        if not data:
            return
        if os.fork() == 0:
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _keep(json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    report, *streams = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(report)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _run(**request)
    os.write(report, str(pid).encode())
    for stream in streams:  # who reads what it writes has to see its end
        os.close(stream)
    _, status = os.waitpid(pid, 0)
    os.write(report, str(status).encode())
    os._exit(0)


def _run(
    words: Sequence[str], environment: Mapping[str, str], folder: str, closed: Sequence[int]
) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor in closed:
        os.close(descriptor)
    _open_streams(closed)
    code: str | int | None = None
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    leave(code)


def leave(code: str | int | None) -> NoReturn:
    """Does what an interpreter does at its end, but for taking all modules apart: that would copy the whole memory that
    was forked, and take ten times as long as all the rest."""
    threading._shutdown()  # type: ignore[attr-defined]  # which waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # the interpreter has words for it
    if code is None or isinstance(code, int):
        os._exit((code or 0) & 0xFF)
    sys.exit(code)


def _open_streams(closed: Sequence[int]) -> None:
    """As an interpreter does when it starts: what is closed is None."""
    streams = {
        "stdin": os.fdopen(0, closefd=False),
        "stdout": None if 1 in closed else os.fdopen(1, "w", closefd=False),
        "stderr": os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace"),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    import stafeta.clients.flight.connection
    import stafeta.clients.zeromq.client
    import stafeta.doors.flight.server
    import stafeta.doors.http.server
    import stafeta.metrics.scrape
    import stafeta.server  # noqa: F401 - for those who are forked
    from stafeta.cli.main import parser_for

    parser_for([])  # which imports all commands
    gc.freeze()  # nobody who is forked looks through it for garbage, and so copies its pages
    _serve(socket.socket(fileno=int(sys.argv[1])))
