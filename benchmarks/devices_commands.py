"""`stafeta devices server` and `stafeta devices subscriber`: how soon they are connected, and how soon gone."""

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.brokers import BrokerFailed, environment
from benchmarks.peer_server import free_port
from benchmarks.percentiles import median
from benchmarks.results import Bar, Column, Row, Table
from benchmarks.setting import Setting
from stafeta.clients.closing import Closing

SOON = Bar("slowest_s", "<", 0.5, " s")
_PATIENCE = 30.0
_POLL = 0.002


def run(setting: Setting) -> list[Table]:
    times = setting.sized(20, 2)
    took: dict[str, list[float]] = {}
    for number in range(times + 1):
        setting.say(f"{number} of {times}" if number else "once, to compile what is not yet")
        folder = setting.folder / f"{number}"
        folder.mkdir()
        for label, seconds in _once(folder).items():
            if number:
                took.setdefault(label, []).append(seconds)
    return [
        Table(
            "The commands for devices, from their start and to their end",
            f"{times} times. From the start of the process, and from the line `exit` until the process is gone.",
            (
                Column("event", "event"),
                Column("median_s", "median s", 3),
                Column("slowest_s", "slowest s", 3),
            ),
            tuple(
                Row({"event": label, "median_s": median(each), "slowest_s": max(each)}, (SOON,))
                for label, each in took.items()
            ),
        )
    ]


def _once(folder: Path) -> dict[str, float]:
    took = {}
    port = free_port()
    with ExitStack() as stack:
        server = stack.enter_context(_Command(folder, "server", str(port)))
        server.await_port(port)
        took["server listens"] = perf_counter() - server.started
        first = stack.enter_context(_Command(folder, "subscriber", "first", "127.0.0.1", str(port)))
        server.await_line("New client first connected from ")
        took["subscriber is connected"] = perf_counter() - first.started
        told = first.exit()
        took["subscriber is gone after its exit"] = first.await_end() - told
        server.await_line("Client first disconnected.")
        second = stack.enter_context(_Command(folder, "subscriber", "second", "127.0.0.1", str(port)))
        server.await_line("New client second connected from ")
        told = server.exit()
        took["server is gone after its exit"] = server.await_end() - told
        took["subscriber is gone after the server's exit"] = second.await_end() - told
    return took


class _Command(Closing):
    """`stafeta devices …`, with its input and output at hand; killed at the end, if it still runs."""

    def __init__(self, folder: Path, *words: str) -> None:
        script = Path(sys.executable).with_name("stafeta")
        stafeta = [str(script)] if script.exists() else [sys.executable, "-m", "stafeta"]
        self._name = f"stafeta devices {words[0]}"
        self._complaints = folder / "-".join(["stderr", *words])
        with self._complaints.open("wb") as complaints:
            self.started = perf_counter()
            self._process = subprocess.Popen(
                [*stafeta, "devices", *words],
                env=environment() | {"TMPDIR": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        # Whatever waits for it then finds that it has ended.
        self._too_long = threading.Timer(_PATIENCE, self._process.kill)
        self._too_long.start()

    def await_port(self, port: int) -> None:
        """Waits until it takes connections."""
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                sleep(_POLL)
            else:
                return
        raise self._failed("has not listened")

    def await_line(self, begin: str) -> None:
        """Waits until it prints a line that begins so."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begin):
                return
        raise self._failed(f"has not printed {begin!r}")

    def exit(self) -> float:
        """Tells it to exit; returns when."""
        assert self._process.stdin is not None
        told = perf_counter()
        self._process.stdin.write("exit\n")
        self._process.stdin.flush()
        return told

    def await_end(self) -> float:
        """Waits until it is gone; returns when that was, or was noticed."""
        if self._process.wait():
            raise self._failed("has not ended well")
        return perf_counter()

    def _failed(self, what: str) -> BrokerFailed:
        return BrokerFailed(f"`{self._name}` {what}:\n{self._complaints.read_text(errors='replace')}")

    def close(self) -> None:
        self._too_long.cancel()
        self._process.kill()
        self._process.communicate()
