"""`stafeta devices server`, as a person before a terminal knows it."""

import os
import pty
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.cli import exits
from stafeta.clients.devices import Publisher
from stafeta.message import Kind
from tests import ports
from tests.cli.conftest import Stafeta
from tests.cli.programs import DevicesServer, FreshProgram, Program
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[DevicesServer]:
    with DevicesServer() as process:
        yield process


# --- it cannot start


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_a_port_in_use_is_one_sentence(stafeta: Stafeta, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            other.listen()
        port = other.getsockname()[1]
        done = stafeta("devices", "server", str(port))
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert re.fullmatch(rf"stafeta: .* 127\.0\.0\.1:{port}: Address already in use\.\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("x",), "PORT"),
        (("70000",), "PORT"),
        (("off",), "PORT"),
        (("1,2",), "PORT"),
        (("0", "--host", "0.0.0.0"), "--allow-anyone"),
        (("0", "--set", "devices.bufer=1"), "Did you mean"),
        (("0", "--log-level", "loud"), "loud"),
        (("0", "--data", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_what_it_cannot_be_told_is_one_sentence(
    stafeta: Stafeta, arguments: tuple[str, ...], why: str
) -> None:
    done = stafeta("devices", "server", *arguments)
    assert done.returncode in (exits.USAGE, exits.DATA_FOLDER)
    assert done.stdout == ""
    assert done.stderr.startswith("stafeta: ")
    assert done.stderr.count("\n") == 1
    assert why in done.stderr


# --- it listens before it has started


HOLD_UP = """
import os, sys, time
from importlib.abc import MetaPathFinder

class HoldUp(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        while name == "pyarrow" and not os.path.exists({gate!r}):
            time.sleep(0.01)

sys.meta_path.insert(0, HoldUp())
"""


def test_a_connection_is_taken_before_the_broker_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "sitecustomize.py").write_text(HOLD_UP.format(gate=str(gate)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    holder = ports.held(datagrams=True)
    port = holder.getsockname()[1]

    def connected() -> socket.socket | None:
        assert program.process.poll() is None, program.errors
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            return None

    with holder, FreshProgram("devices", "server", str(port)) as program:
        early = wait_until(connected)
        assert early is not None
        with early:
            early.sendall(b"id2C1")
            assert "listening" not in program.errors, "what a broker needs is held up"
            gate.touch()
            assert program.line().startswith("New client C1 connected from 127.0.0.1:")


# --- it prints who comes and goes


def test_it_prints_three_kinds_of_lines_and_nothing_else(server: DevicesServer) -> None:
    with Program("devices", "subscriber", "C1", "127.0.0.1", str(server.port)) as subscriber:
        assert re.fullmatch(r"New client C1 connected from 127\.0\.0\.1:\d+\.", server.line())
        with Program("devices", "subscriber", "C1", "127.0.0.1", str(server.port)) as second:
            assert server.line() == "Client C1 already connected."
            assert (second.wait(), second.rest(), second.errors) == (exits.OK, "", "")
        assert subscriber.leave() == exits.OK
        assert server.line() == "Client C1 disconnected."
    assert server.leave() == exits.OK
    assert server.rest() == ""


def test_standard_error_has_where_it_listens_and_what_is_wrong_only(server: DevicesServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: "no kind of command" in server.errors)
    listening, warning = server.errors.splitlines()
    assert listening.endswith(f"devices: listening on 127.0.0.1:{server.port}")
    assert " WARN " in warning


def test_lines_that_nobody_reads_do_not_stop_it(server: DevicesServer) -> None:
    """More of them than a pipe holds."""
    for number in range(2000):
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b"id5N%04d" % number)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    assert server.leave() == exits.OK
    lines = server.rest().splitlines()
    assert lines[0].startswith("New client N0000 connected from ")
    assert all(re.fullmatch(r"New client .*\.|Client N\d{4} disconnected\.", line) for line in lines)


# --- it leaves


def test_exit_closes_it_and_every_client(server: DevicesServer) -> None:
    with server.subscriber("C1") as first, server.subscriber("C2") as second:
        assert server.leave() == exits.OK
        assert (first.wait(), second.wait()) == (exits.OK, exits.OK)
        assert (first.rest(), second.rest(), first.errors, second.errors) == ("", "", "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(server: DevicesServer, number: signal.Signals) -> None:
    with server.subscriber("C1") as subscriber:
        assert server.interrupt(number) == exits.OK
        assert subscriber.wait() == exits.OK
    assert "Traceback" not in server.errors


def test_the_end_of_its_input_does_not_end_it(server: DevicesServer) -> None:
    server.enter("what", "", "exi")
    server.stdin.close()
    with server.subscriber("C1") as subscriber:
        assert subscriber.leave() == exits.OK
    assert server.line() == "Client C1 disconnected."
    assert server.interrupt(signal.SIGTERM) == exits.OK


def test_exit_without_a_newline_is_exit_at_the_end_of_input(stafeta: Stafeta) -> None:
    done = stafeta("devices", "server", "0", stdin=b"nothing\nexit")
    assert (done.returncode, done.stdout) == (exits.OK, "")


def test_exit_can_be_typed_on_a_terminal() -> None:
    screen, terminal = pty.openpty()
    with Program("devices", "server", "0", stdin=terminal) as server:
        os.close(terminal)
        wait_until(lambda: "listening" in server.errors)
        os.write(screen, b"exit\n")
        assert server.wait() == exits.OK
    os.close(screen)


# --- what it remembers


def test_without_a_folder_each_run_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with DevicesServer() as server, server.subscriber("C1") as subscriber:
        subscriber.enter("subscribe a 1")
        assert subscriber.line() == "Subscribed to topic."
        assert len(list(tmp_path.iterdir())) == 1
        assert server.leave() == exits.OK
    assert list(tmp_path.iterdir()) == []


def test_with_a_folder_it_remembers_who_waits_for_what(tmp_path: Path) -> None:
    with DevicesServer("--data", str(tmp_path / "log")) as server:
        with server.subscriber("C1") as subscriber:
            subscriber.enter("subscribe a 1")
            assert subscriber.leave() == exits.OK
        assert server.line() == "Client C1 disconnected."
        with Publisher("127.0.0.1", server.port) as publisher:
            publisher.publish("a", Kind.FLOAT, b"1234.4321")
        assert server.leave() == exits.OK
    with DevicesServer("--data", str(tmp_path / "log")) as server, server.subscriber("C1") as subscriber:
        assert subscriber.line().endswith(" - a - FLOAT - 1234.4321")
