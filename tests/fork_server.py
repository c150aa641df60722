"""Python programs that start at once: forks of a process that has imported what a broker imports.

A broker takes half a second of a processor to import its modules, and the tests start hundreds of brokers. Here that is
done once. A program has arguments, an environment and streams of its own, and ends as any other does.

1. The server has a single thread and no state, so that a fork of it is as good as a new process.
2. Between it and each program is a keeper, which waits for the program and tells how it has ended.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

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
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], *, read_errors: bool = False
    ) -> Program:
        """Runs `python WORDS…`: a file, or -m and a module, and its arguments."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, errors = os.pipe() if read_errors else (-1, os.dup(2))
        try:
            request = json.dumps(
                {"words": list(words), "environment": dict(environment), "folder": os.getcwd()}
            )
            with self._lock:
                socket.send_fds(self._connected(), [request.encode()], [theirs.fileno(), 1, errors])
        finally:
            theirs.close()
            os.close(errors)
        return Program(ours, os.fdopen(reading, errors="backslashreplace") if read_errors else None)

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


def _serve(channel: socket.socket) -> None:
    """Until whoever has started it closes the channel, or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 3)
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
    report, output, errors = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(report)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        _run(**request)
    os.write(report, str(pid).encode())
    os.close(output)
    os.close(errors)
    _, status = os.waitpid(pid, 0)
    os.write(report, str(status).encode())
    os._exit(0)


def _run(words: Sequence[str], environment: Mapping[str, str], folder: str) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    import stafeta.cli.main
    import stafeta.doors.flight.server
    import stafeta.doors.http.server
    import stafeta.server  # noqa: F401 - for those who are forked

    _serve(socket.socket(fileno=int(sys.argv[1])))
