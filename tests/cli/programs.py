"""Commands that run while a test talks to them. They are forks of a process that has imported everything."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from stafeta.addresses import Address
from stafeta.clients.closing import Closing
from tests import fork_server
from tests.waiting import PATIENCE, wait_until

_FAREWELL = 5.0


class Program(Closing):
    """`stafeta` with these arguments: a test types lines and reads lines."""

    def __init__(self, *arguments: str, stdin: int | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        words = ["-m", "stafeta", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STAFETA_")}
        reading, writing = os.pipe()
        self.output, printing = os.pipe()
        try:
            streams = (reading if stdin is None else stdin, printing, self._errors.fileno())
            self.process = self._start(words, environment, *streams)
        finally:
            os.close(reading)
            os.close(printing)
        self.stdin = os.fdopen(writing, "wb", buffering=0)
        self._unread = b""

    def _start(
        self, words: list[str], environment: dict[str, str], stdin: int, stdout: int, stderr: int
    ) -> "fork_server.Program | subprocess.Popen[bytes]":
        return fork_server.FORKS.start(words, environment, stdin=stdin, stdout=stdout, stderr=stderr)

    def enter(self, *lines: str) -> None:
        self.stdin.write("".join(f"{line}\n" for line in lines).encode())

    def line(self) -> str:
        """The next line of output, without its newline."""
        (found,) = self.lines(1)
        return found

    def lines(self, count: int) -> list[str]:
        deadline = time.monotonic() + PATIENCE
        while self._unread.count(b"\n") < count:
            ready, _, _ = select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{count} lines do not come: {self._unread[-200:]!r}\n{self.errors}"
            more = os.read(self.output, 1 << 16)
            assert more, f"it ended before {count} lines: {self._unread[-200:]!r}\n{self.errors}"
            self._unread += more
        *lines, self._unread = self._unread.split(b"\n", count)
        return [line.decode() for line in lines]

    def rest(self) -> str:
        """All that is still to come, up to the end."""
        while more := os.read(self.output, 1 << 16):
            self._unread += more
        rest, self._unread = self._unread, b""
        return rest.decode()

    @property
    def errors(self) -> str:
        """What it has written on standard error."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode()

    def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        return self.process.wait(PATIENCE)

    def leave(self) -> int:
        """Types `exit`; returns the exit code."""
        self.enter("exit")
        return self.wait()

    def close(self) -> None:
        """Ends it. SIGTERM first: a server that is killed leaves its temporary folder behind."""
        self.process.terminate()
        try:
            self.process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdin.close()
        self._errors.close()
        os.close(self.output)


class FreshProgram(Program):
    """One that has imported nothing when it starts."""

    def _start(
        self, words: list[str], environment: dict[str, str], stdin: int, stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, *words], env=environment, stdin=stdin, stdout=stdout, stderr=stderr
        )


class DevicesServer(Program):
    """`stafeta devices server`, on any free port unless told otherwise."""

    def __init__(self, *options: str, port: int = 0, host: str = "127.0.0.1") -> None:
        super().__init__("devices", "server", str(port), *options)
        listening = f"devices: listening on {Address(host, 0)}"[:-1]
        try:
            wait_until(lambda: listening in self.errors or self.process.poll() is not None)
            self.port = int(self.errors.partition(listening)[2].split()[0])
        except BaseException:
            self.close()
            raise

    def subscriber(self, client: str, port: int | None = None) -> Program:
        """A subscriber that is connected."""
        program = Program("devices", "subscriber", client, "127.0.0.1", str(port or self.port))
        try:
            assert self.line().startswith(f"New client {client} connected from 127.0.0.1:")
        except BaseException:
            program.close()
            raise
        return program

    def interrupt(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()
