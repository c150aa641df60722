"""`stafeta devices subscriber`, typed at and read from as people and scripts do."""

import fcntl
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from stafeta.cli import exits
from stafeta.clients.devices import Publisher
from stafeta.message import Kind
from tests.cli.conftest import Stafeta
from tests.cli.programs import DevicesServer, Program
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[DevicesServer]:
    with DevicesServer() as process:
        yield process


@pytest.fixture
def publisher(server: DevicesServer) -> Iterator[Publisher]:
    with Publisher("127.0.0.1", server.port) as one:
        yield one


@pytest.fixture
def subscriber(server: DevicesServer) -> Iterator[Program]:
    with server.subscriber("C1") as one:
        yield one


def settle(program: Program, publisher: Publisher) -> None:
    """Waits until the server has carried out what was typed."""
    program.enter("subscribe settled")
    assert program.line() == "Subscribed to topic."

    def arrived() -> bool:
        publisher.publish("settled", Kind.STRING, b"")
        return bool(select.select([program.output], [], [], 0.05)[0])

    wait_until(arrived)
    publisher.publish("settled", Kind.STRING, b"last")
    while not program.line().endswith(" - settled - STRING - last"):
        pass


# --- it cannot start


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("ABCDEFGHIJK", "127.0.0.1", "1"), exits.USAGE, "'ABCDEFGHIJK' cannot be a client's id"),
        (("", "127.0.0.1", "1"), exits.USAGE, "cannot be a client's id"),
        (("C1", "127.0.0.1", "x"), exits.USAGE, "PORT must be a number from 1 to 65535, not 'x'"),
        (("C1", "127.0.0.1", "0"), exits.USAGE, "PORT"),
        (("C1", "no.such.host.invalid", "1"), exits.UNREACHABLE, "no.such.host.invalid:1 cannot be reached"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    stafeta: Stafeta, arguments: tuple[str, ...], code: int, why: str
) -> None:
    done = stafeta("devices", "subscriber", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(r"stafeta: .*\.\n", done.stderr)
    assert why in done.stderr


def test_a_server_that_is_not_there_is_one_sentence(stafeta: Stafeta) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        done = stafeta("devices", "subscriber", "C1", "127.0.0.1", str(port))
    assert (done.returncode, done.stdout) == (exits.UNREACHABLE, "")
    assert done.stderr == f"stafeta: 127.0.0.1:{port} cannot be reached: Connection refused.\n"


# --- what is typed


def test_two_people_at_two_terminals(
    server: DevicesServer, publisher: Publisher, subscriber: Program
) -> None:
    subscriber.enter("subscribe hall/door 1")
    assert subscriber.line() == "Subscribed to topic."
    settle(subscriber, publisher)
    publisher.publish("hall/door", Kind.FLOAT, b"1234.4321")
    assert re.fullmatch(r"127\.0\.0\.1:\d+ - hall/door - FLOAT - 1234\.4321", subscriber.line())
    assert subscriber.leave() == exits.OK
    assert (subscriber.rest(), subscriber.errors) == ("", "")
    assert server.line() == "Client C1 disconnected."
    publisher.publish("hall/door", Kind.INT, b"-17")
    publisher.publish("hall/door", Kind.SHORT_REAL, b"2.30")
    with server.subscriber("C1") as again:
        values = [line.rpartition(" - ")[2] for line in again.lines(2)]
        assert values == ["-17", "2.30"]
        again.enter("unsubscribe hall/door")
        assert again.line() == "Unsubscribed from topic."
        settle(again, publisher)
        publisher.publish("hall/door", Kind.STRING, b"nobody hears")
        publisher.publish("settled", Kind.STRING, b"heard")
        assert again.line().endswith("heard")


def test_lines_that_are_no_command_are_told_and_those_without_a_topic_ignored(subscriber: Program) -> None:
    subscriber.enter(
        "", "subscribe", "unsubscribe  ", "frobnicate x", "Subscribe a", "subscribe a 2", "exit now"
    )
    assert subscriber.wait() == exits.OK
    assert subscriber.rest() == ""
    assert subscriber.errors.splitlines() == [
        "stafeta: 'frobnicate' is not a command; they are subscribe, unsubscribe and exit.",
        "stafeta: 'Subscribe' is not a command; they are subscribe, unsubscribe and exit.",
        "stafeta: SF must be 0 or 1, not '2'.",
    ]


def test_more_words_are_ignored(subscriber: Program, publisher: Publisher) -> None:
    subscriber.enter("  subscribe  a/b\t1 if you please", "unsubscribe a/b now")
    assert subscriber.lines(2) == ["Subscribed to topic.", "Unsubscribed from topic."]
    settle(subscriber, publisher)
    assert subscriber.errors == ""


def test_the_end_of_its_input_does_not_end_it(
    server: DevicesServer, publisher: Publisher, subscriber: Program
) -> None:
    settle(subscriber, publisher)
    subscriber.stdin.write(b"subscribe a")  # and no newline
    subscriber.stdin.close()
    assert subscriber.line() == "Subscribed to topic."
    publisher.publish("settled", Kind.STRING, b"still there")
    assert subscriber.line().endswith("still there")
    assert server.leave() == exits.OK
    assert subscriber.wait() == exits.OK


def test_commands_may_come_from_a_file(server: DevicesServer) -> None:
    with (
        open(os.devnull) as nothing,
        Program(
            "devices", "subscriber", "C1", "127.0.0.1", str(server.port), stdin=nothing.fileno()
        ) as subscriber,
    ):
        assert server.line().startswith("New client C1 connected")
        assert server.leave() == exits.OK
        assert (subscriber.wait(), subscriber.rest(), subscriber.errors) == (exits.OK, "", "")


def test_an_interrupt_is_quiet(server: DevicesServer, subscriber: Program) -> None:
    subscriber.process.send_signal(signal.SIGINT)
    assert (subscriber.wait(), subscriber.rest(), subscriber.errors) == (exits.INTERRUPTED, "", "")
    assert server.line() == "Client C1 disconnected."


# --- what comes


def test_bytes_that_are_no_text_come_out_as_they_came(server: DevicesServer, subscriber: Program) -> None:
    with Publisher("127.0.0.1", server.port) as publisher:
        settle(subscriber, publisher)
        publisher.publish("settled", Kind.BYTES, b"caf\xe9")
        found = b""
        while not found.endswith(b"\n"):
            found += os.read(subscriber.output, 1000)
    assert found.endswith(b" - settled - STRING - caf\xe9\n")


def test_a_server_that_makes_no_sense_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Program("devices", "subscriber", "C1", "127.0.0.1", str(port)) as subscriber:
            stranger, _ = listener.accept()
            with stranger:
                stranger.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                assert subscriber.wait() == exits.REFUSED
            assert subscriber.rest() == ""
            assert re.fullmatch(r"stafeta: The broker sends \d+ bytes .*\.\n", subscriber.errors)


def test_all_that_was_received_is_printed_before_it_ends() -> None:
    """Also where nobody reads for a while, and there is more than a pipe holds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Program("devices", "subscriber", "C1", "127.0.0.1", str(port)) as subscriber:
            server, _ = listener.accept()
            with server:
                assert server.recv(100) == b"id2C1"
                for number in range(200):
                    datagram = struct.pack("50sB1200s", b"a/b", 3, b"%04d" % number * 300)
                    server.sendall(struct.pack(">4BHH", 10, 1, 2, 3, 4, len(datagram)) + datagram)
            wait_until(lambda: _in_pipe(subscriber.output) > 32768)
            assert subscriber.process.poll() is None
            assert subscriber.rest().splitlines() == [
                f"10.1.2.3:4 - a/b - STRING - {f'{number:04}' * 300}" for number in range(200)
            ]
            assert (subscriber.wait(), subscriber.errors) == (exits.OK, "")


def test_exit_works_while_nobody_reads_and_what_is_printed_is_whole_lines(
    server: DevicesServer, publisher: Publisher, subscriber: Program
) -> None:
    settle(subscriber, publisher)
    for number in range(1000):
        publisher.publish("settled", Kind.STRING, b"%04d" % number * 375)
    wait_until(lambda: _in_pipe(subscriber.output) > 32768)
    assert subscriber.leave() == exits.OK
    assert server.line() == "Client C1 disconnected."
    printed = subscriber.rest()
    assert printed.endswith("\n")
    values = [line.rpartition(" - ")[2] for line in printed.splitlines()]
    assert values == [f"{number:04}" * 375 for number in range(len(values))]


def test_exit_works_after_the_server_has_closed_and_nobody_reads(
    server: DevicesServer, publisher: Publisher, subscriber: Program
) -> None:
    settle(subscriber, publisher)
    for _ in range(200):
        publisher.publish("settled", Kind.STRING, b"x" * 1500)
    wait_until(lambda: _in_pipe(subscriber.output) > 32768)
    assert server.leave() == exits.OK
    assert subscriber.leave() == exits.OK


def test_a_reader_that_leaves_ends_it(server: DevicesServer, publisher: Publisher) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "stafeta", "devices", "subscriber", "C1", "127.0.0.1", str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    assert server.line().startswith("New client C1")
    program.stdout.close()
    program.stdin.write(b"subscribe a\n")
    program.stdin.flush()
    assert program.wait(PATIENCE) == exits.BROKEN_PIPE
    assert program.stderr.read() == b""
    program.stdin.close()
    program.stderr.close()


def _in_pipe(descriptor: int) -> int:
    """Bytes that wait in a pipe."""
    waiting: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
    return waiting
