"""`stafeta devices publish`: what leaves it is caught by a plain socket."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta.cli import exits
from stafeta.doors.devices.readings import read
from stafeta.message import Kind
from tests.cli.conftest import Stafeta
from tests.cli.programs import Program
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


class Catcher:
    """Where readings go."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.2)
        self.place = ("127.0.0.1", str(self.socket.getsockname()[1]))

    def caught(self) -> list[tuple[str, str, str]]:
        """All that has come: topic, kind and value."""
        found = []
        try:
            while True:
                topic, kind, payload = read(self.socket.recv(2000))
                found.append((topic, kind.name, payload.decode()))
        except TimeoutError:
            return found


@pytest.fixture
def catcher() -> Iterator[Catcher]:
    one = Catcher()
    yield one
    one.socket.close()


def publish(stafeta: Stafeta, catcher: Catcher, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = stafeta("devices", "publish", *catcher.place, *arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


# --- what cannot be published


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), exits.USAGE, "Name a TOPIC, a KIND and a VALUE, or a file with --from."),
        (("a", "int"), exits.USAGE, "Name a TOPIC"),
        (("a", "int", "1", "--from", "-"), exits.USAGE, "leave TOPIC, KIND and VALUE out"),
        (("a", "json", "1"), exits.REFUSED, "'json' is not a kind"),
        (("a", "int", "x"), exits.REFUSED, "'x' is not a number"),
        (("a", "int", "1.5"), exits.REFUSED, "'1.5' is not of the kind int"),
        (("a", "int", "4294967296"), exits.REFUSED, "from -4294967295 to 4294967295"),
        (("a", "short_real", "655.36"), exits.REFUSED, "from 0.00 to 655.35"),
        (("a", "short_real", "1.234"), exits.REFUSED, "'1.234' is not of the kind short_real"),
        (("a", "string", "x" * 1501), exits.REFUSED, "at most 1500 bytes"),
        (("t" * 51, "int", "1"), exits.REFUSED, "1 to 50 bytes"),
        (("a", "int", "1", "--count", "0"), exits.USAGE, "--count must be a whole number above 0"),
        (("a", "int", "1", "--count", "1.5"), exits.USAGE, "--count must be a whole number above 0"),
        (("a", "int", "1", "--rate", "-1"), exits.USAGE, "--rate must be a number above 0"),
        (("a", "int", "1", "--rate", "nan"), exits.USAGE, "--rate must be a number above 0"),
        (("--from", "/no/such/file"), exits.USAGE, "/no/such/file cannot be read: No such file or directory"),
        (("--from", "/"), exits.USAGE, "/ cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_published_is_one_sentence(
    stafeta: Stafeta, catcher: Catcher, arguments: tuple[str, ...], code: int, why: str
) -> None:
    found, stdout, stderr = publish(stafeta, catcher, *arguments)
    assert (found, stdout) == (code, "")
    assert re.fullmatch(r"stafeta: .*\.\n", stderr)
    assert why in stderr


@pytest.mark.parametrize("place", [("127.0.0.1", "0"), ("127.0.0.1", "65536"), ("127.0.0.1", "http")])
def test_a_port_that_is_none_is_one_sentence(stafeta: Stafeta, place: tuple[str, str]) -> None:
    done = stafeta("devices", "publish", *place, "a", "int", "1")
    assert (done.returncode, done.stderr.count("\n")) == (exits.USAGE, 1)


def test_a_host_that_is_none_is_one_sentence(stafeta: Stafeta) -> None:
    done = stafeta("devices", "publish", "no.such.host.invalid", "1", "a", "int", "1")
    assert done.returncode == exits.UNREACHABLE
    assert done.stderr.startswith("stafeta: no.such.host.invalid:1 cannot be reached: ")


def test_a_bad_line_is_told_with_its_number_and_the_others_are_sent(
    stafeta: Stafeta, catcher: Catcher, tmp_path: Path
) -> None:
    file = tmp_path / "readings"
    bad = {
        "x": "it is not JSON.",
        "[" * 100_000: "it is not JSON.",
        "[1]": 'it is not an object with "topic", "kind" and "value".',
        '{"topic": "a", "kind": "int"}': 'it has no "value".',
        '{"topic": "a", "kind": "int", "value": true}': 'its "value" is true, which is no text or number.',
        '{"topic": "a", "kind": "int", "value": NaN}': 'its "value" is NaN, which is no text or number.',
        '{"topic": "a", "kind": "int", "value": 1.5}': "'1.5' is not of the kind int.",
        '{"topic": "a", "kind": "string", "value": "\\ud800"}': "'\\ud800' is not UTF-8.",
    }
    good = '{"topic": "a", "kind": "int", "value": 7}'
    file.write_text("\n".join([good, "", *bad, good]))
    code, stdout, stderr = publish(stafeta, catcher, "--from", str(file), "--count", "4")
    assert (code, stdout) == (exits.REFUSED, "4\n")
    assert stderr.splitlines() == [
        f"stafeta: {file}, line {number}: {why}" for number, why in enumerate(bad.values(), 3)
    ]
    assert catcher.caught() == [("a", "INT", "7")] * 4


def test_a_line_that_is_no_text_is_told(stafeta: Stafeta, catcher: Catcher) -> None:
    code, stdout, stderr = publish(stafeta, catcher, "--from", "-", stdin=b"\xff\xfe\n")
    assert (code, stdout, stderr) == (
        exits.REFUSED,
        "0\n",
        "stafeta: standard input, line 1: it is not JSON.\n",
    )


def test_a_file_of_bad_lines_only_does_not_run_for_ever(
    stafeta: Stafeta, catcher: Catcher, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("x\n")
    assert publish(stafeta, catcher, "--from", str(tmp_path / "bad"), "--count", "9")[:2] == (1, "0\n")
    (tmp_path / "empty").touch()
    assert publish(stafeta, catcher, "--from", str(tmp_path / "empty"), "--count", "9") == (0, "0\n", "")


# --- what is published


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("int", "-5", "-5"),
        ("SHORT_REAL", "2.5", "2.50"),
        ("float", "1234.4321", "1234.4321"),
        ("Float", "-0.500", "-0.500"),
        ("string", "două cuvinte", "două cuvinte"),
    ],
)
def test_a_reading_goes_out_as_it_is_written(
    stafeta: Stafeta, catcher: Catcher, kind: str, value: str, seen: str
) -> None:
    assert publish(stafeta, catcher, "a/b", kind, value) == (exits.OK, "", "")
    assert catcher.caught() == [("a/b", kind.upper(), seen)]


def test_a_reading_can_be_repeated_at_a_rate(stafeta: Stafeta, catcher: Catcher) -> None:
    begin = time.monotonic()
    assert publish(stafeta, catcher, "a", "int", "7", "--count", "21", "--rate", "100") == (exits.OK, "", "")
    assert time.monotonic() - begin >= 0.19
    assert catcher.caught() == [("a", "INT", "7")] * 21


def test_the_numbers_of_a_file_stay_exact(stafeta: Stafeta, catcher: Catcher) -> None:
    lines = [
        ("int", "-4294967295", "-4294967295"),
        ("short_real", "655.35", "655.35"),
        ("short_real", '"7"', "7.00"),
        ("float", "1234.4321", "1234.4321"),
        ("float", "1.10", "1.10"),
        ("float", "0.1000000000", "0.1000000000"),
        ("float", "1e-07", "0.0000001"),
        ("string", "1.10", "1.10"),
        ("string", '"ș"', "ș"),
    ]
    text = "".join(
        f'{{"topic": "t", "kind": "{kind}", "value": {value}, "more": 1}}\n' for kind, value, _ in lines
    )
    assert publish(stafeta, catcher, "--from", "-", stdin=text.encode()) == (exits.OK, f"{len(lines)}\n", "")
    assert catcher.caught() == [("t", kind.upper(), seen) for kind, _, seen in lines]


def test_a_file_is_cut_or_begun_anew_to_make_the_count(
    stafeta: Stafeta, catcher: Catcher, tmp_path: Path
) -> None:
    text = "".join(f'{{"topic": "t", "kind": "int", "value": {number}}}\n' for number in range(3))
    file = tmp_path / "readings"
    file.write_text(text)
    for count, values in ((2, "01"), (3, "012"), (7, "0120120")):
        assert publish(stafeta, catcher, "--from", str(file), "--count", str(count)) == (0, f"{count}\n", "")
        assert "".join(value for _, _, value in catcher.caught()) == values
    assert publish(stafeta, catcher, "--from", "-", "--count", "7", stdin=text.encode()) == (0, "3\n", "")


def test_lines_go_out_as_they_come(catcher: Catcher) -> None:
    with Program("devices", "publish", *catcher.place, "--from", "-") as program:
        catcher.socket.settimeout(PATIENCE)
        for number in range(3):
            program.enter(f'{{"topic": "t", "kind": "int", "value": {number}}}')
            assert read(catcher.socket.recv(2000)) == ("t", Kind.INT, b"%d" % number)
        program.process.send_signal(signal.SIGINT)
        assert (program.wait(), program.rest(), program.errors) == (exits.INTERRUPTED, "", "")


def test_on_a_terminal_there_is_a_bar(catcher: Catcher, tmp_path: Path) -> None:
    file = tmp_path / "readings"
    file.write_text('{"topic": "t", "kind": "int", "value": 1}\nbad\n')
    screen, terminal = pty.openpty()
    arguments = ["devices", "publish", *catcher.place, "--from", str(file), "--count", "60", "--rate", "200"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stafeta", *arguments], stderr=terminal, stdout=subprocess.PIPE
    )
    os.close(terminal)
    assert process.stdout is not None
    assert process.stdout.read() == b"60\n"
    assert process.wait(PATIENCE) == exits.REFUSED
    process.stdout.close()
    seen = os.read(screen, 65536).decode()
    os.close(screen)
    assert f"stafeta: {file}, line 2: it is not JSON." in seen
    bars = re.findall(r"\r\[(#*)-*\] +(\d+)%  (\d+) sent, \d+/s", seen)
    assert bars[-1] == ("#" * 30, "100", "60")
    assert [int(sent) for _, _, sent in bars] == sorted(int(sent) for _, _, sent in bars)
    assert len(bars) > 1
    assert seen.endswith("\r\n")
