"""`stafeta bench`: real runs, so small that their figures say nothing."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import stafeta as package
from stafeta.bench import plot
from stafeta.bench.plan import DOORS
from stafeta.cli import exits
from stafeta.errors import ConfigError
from tests.brokers import BrokerProcess
from tests.cli.conftest import Stafeta
from tests.cli.programs import Program
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:1"


# --- what cannot be measured


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--door", "window"), "invalid choice: 'window'"),
        (("--size", "15"), "--size must be from 16 to 8,388,608 bytes for the flight door, not 15"),
        (("--door", "zeromq", "--size", "31"), "--size must be from 32 to"),
        (
            ("--door", "devices", "--size", "1501"),
            "--size must be from 32 to 1,500 bytes for the devices door",
        ),
        (("--size", "large"), "'large' is not a size"),
        (("--batch", "0"), "--batch must be a whole number above 0, not '0'."),
        (("--rate", "-1"), "--rate must be a number above 0, not '-1'."),
        (("--messages", "1.5"), "--messages must be a whole number above 0, not '1.5'."),
        (("--seconds", "nan"), "--seconds must be a number above 0, not 'nan'."),
        (("--messages", "1", "--seconds", "1"), "--messages and --seconds both say how long it takes"),
        (("--publishers", "0"), "--publishers must be a whole number above 0, not '0'."),
        (("--subscribers", "1001"), "--subscribers: each is a process of its own"),
        (("--topic", "a/+"), "--topic: The topic 'a/+' has '+' in it"),
        (("--door", "devices", "--topic", "t" * 51), "--topic: a device's topic has at most 50 bytes"),
        (("--address", "localhost"), "--address is HOST:PORT or grpc://HOST:PORT"),
        (("--address", "tcp://localhost:1"), "'tcp://localhost:1' is not."),
        (("--door", "zeromq", "--address", "localhost:65536"), "--address is HOST:PORT or tcp://HOST:PORT"),
        (("--plot", "picture.gif"), "--plot draws a .png or a .svg; 'picture.gif' is neither."),
        (("--plot", "/no/such/folder/picture.png"), "--plot: there is no folder /no/such/folder."),
    ],
)
def test_wrong_arguments_are_one_sentence(stafeta: Stafeta, arguments: tuple[str, ...], why: str) -> None:
    done = stafeta("bench", *arguments)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert why in done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_where_no_broker_is_it_says_so(stafeta: Stafeta, door: str) -> None:
    done = stafeta("bench", "--door", door, "--address", NOBODY)
    assert (done.returncode, done.stdout) == (exits.UNREACHABLE, "")
    assert (
        done.stderr
        == f"stafeta: No broker answers at {NOBODY}: Connection refused. Does it run, with this door open?\n"
    )


def test_a_picture_without_matplotlib_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'stafeta\[plot\]'"):
        plot.check(tmp_path / "picture.svg")


def test_a_topic_that_somebody_else_publishes_on_is_noticed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        package.Client(broker.address) as client,
        Program("bench", "--door", "zeromq", "--address", broker.address, "--topic", "news") as program,
    ):
        wait_until(lambda: client.topics("news"))
        client.put("news", "the baton has arrived")
        assert program.wait() == exits.REFUSED
        assert program.errors == (
            "stafeta: Somebody else publishes on the topic, too; choose another one with --topic.\n"
        )
        wait_until(lambda: not client.topics("news"))


# --- what ends it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_no_process_is_left_and_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Program("bench", "--door", "zeromq", "--seconds", "60") as program:
        processes = at_work(program, 3)
        assert [path.name[:15] for path in tmp_path.iterdir()] == ["stafeta-broker-"]
        program.process.send_signal(number)
        assert program.wait() == (exits.INTERRUPTED if number == signal.SIGINT else -number)
        if number == signal.SIGKILL:
            wait_until(lambda: not any(process.is_running() for process in processes))
        assert not any(process.is_running() for process in processes)
        assert (program.rest(), program.errors) == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("door", ["zeromq", "devices", "flight"])
def test_an_interrupted_run_leaves_nothing_at_a_running_broker(tmp_path: Path, door: str) -> None:
    with (
        running(tmp_path, door) as broker,
        package.Client(broker.address) as client,
        Program("bench", "--door", door, "--address", place(broker, door), "--seconds", "60") as program,
    ):
        wait_until(lambda: any(topic.next > 100 for topic in client.topics("bench/#")))
        program.process.send_signal(signal.SIGINT)
        assert (program.wait(), program.errors) == (exits.INTERRUPTED, "")
        wait_until(lambda: client.topics() == [])


def test_a_broker_that_is_killed_ends_it(tmp_path: Path) -> None:
    with (
        running(tmp_path, "frames") as broker,
        Program("bench", "--door", "frames", "--address", place(broker, "frames")) as program,
    ):
        at_work(program, 2)
        with package.Client(broker.address) as client:
            wait_until(lambda: any(topic.next > 100 for topic in client.topics("bench/#")))
        broker.kill()
        assert program.wait() == exits.REFUSED
        assert "127.0.0.1" in program.errors


# --- what it measures


@pytest.mark.parametrize(
    ("door", "more"),
    [
        ("flight", ["--batch", "500", "--publishers", "2", "--subscribers", "2"]),
        ("flight", ["--rate", "4000"]),
        ("zeromq", []),
        ("zeromq", ["--rate", "4000", "--batch", "20", "--publishers", "2"]),
        ("frames", ["--subscribers", "2"]),
        ("devices", ["--rate", "4000"]),
    ],
)
def test_every_message_is_delivered_once_to_every_subscriber(
    stafeta: Stafeta, door: str, more: list[str]
) -> None:
    result = measured(stafeta, "--door", door, "--messages", "2000", *more)
    settings = result["settings"]
    assert (settings["door"], settings["messages"]) == (door, 2000)
    assert result["published"]["messages"] == 2000
    assert result["delivered"]["messages"] == 2000 * settings["subscribers"]
    assert (result["lost"], result["repeated"]) == (0, 0)
    assert sum(result["timeline"]["delivered"]) == 2000 * settings["subscribers"]
    assert result["published"]["per_second"] > 0
    assert "on disk before it is" in result["promise"]
    latencies = result["latency_ms"]
    assert (latencies["acknowledgement"] is None) == (door in ("frames", "devices"))
    for latency in filter(None, latencies.values()):
        assert list(latency) == ["p50", "p90", "p99", "p99.9", "max"]
        assert latency["p50"] > 0
        assert list(latency.values()) == sorted(latency.values())


def test_a_rate_and_a_time_make_so_many_messages_and_a_picture_of_them(
    stafeta: Stafeta, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.svg"
    rate = ("--rate", "500", "--seconds", "0.5", "--publishers", "3")
    result = measured(stafeta, "--door", "zeromq", *rate, "--plot", str(picture))
    assert result["published"]["messages"] == 250
    assert 0.4 < result["published"]["seconds"] < 5
    assert picture.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("door", ["zeromq", "devices", "flight"])
def test_a_running_broker_is_left_as_it_was(stafeta: Stafeta, tmp_path: Path, door: str) -> None:
    with running(tmp_path, door) as broker, package.Client(broker.address) as client:
        address = f"{DOORS[door].scheme}://{place(broker, door)}"
        result = measured(stafeta, "--door", door, "--address", address, "--messages", "1000", "--topic", "t")
        assert result["broker"] == place(broker, door)
        assert (result["settings"]["topic"], result["lost"], result["repeated"]) == ("t", 0, 0)
        wait_until(lambda: client.topics() == [])


def test_people_get_tables_and_a_picture(stafeta: Stafeta, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    words = ("--messages", "1000", "--size", "1KiB", "--plot", str(picture))
    done = stafeta("bench", "--door", "zeromq", *words)
    assert (done.returncode, done.stderr) == (exits.OK, "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "zeromq door: 1,000 messages of 1,024 bytes, 4,096 at a time, as fast as possible"
    )
    assert re.search(
        r"^ +messages +messages/s +MB/s\npublished +1,000 +[\d,]+ +[\d.,]+\n", done.stdout, re.MULTILINE
    )
    assert re.search(
        r"^latency, ms +p50 +p90 +p99 +p99\.9 +max\nacknowledged( +[\d.,]+){5}\n", done.stdout, re.MULTILINE
    )
    assert re.search(r"^delivered +1,000 +[\d,]+ +[\d.,]+\n", done.stdout, re.MULTILINE)
    assert lines[-1] == "0 lost, 0 repeated"


def test_on_a_terminal_it_shows_how_far_it_is() -> None:
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stafeta", "bench", "--door", "zeromq", "--rate", "500", "--seconds", "1"],
        stderr=terminal,
        stdout=subprocess.PIPE,
    )
    os.close(terminal)
    assert process.stdout is not None
    assert process.stdout.read().endswith(b"0 lost, 0 repeated\n")
    assert process.wait(PATIENCE) == exits.OK
    process.stdout.close()
    seen = os.read(screen, 65536).decode()
    os.close(screen)
    assert re.search(r"\r\[#{30}\] 100%  500 sent, [\d,]+/s\s*\r\n$", seen)


def measured(stafeta: Stafeta, *arguments: str) -> dict[str, Any]:
    done = stafeta("bench", "--json", *arguments)
    assert (done.returncode, done.stderr) == (exits.OK, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def at_work(program: Program, count: int) -> list[psutil.Process]:
    """The processes that it has started, once it has."""
    parent = psutil.Process(program.process.pid)
    wait_until(lambda: len(parent.children()) == count)
    return parent.children()


def running(folder: Path, door: str) -> BrokerProcess:
    return BrokerProcess(folder / "data", doors=() if door == "zeromq" else (door,))


def place(broker: BrokerProcess, door: str) -> str:
    host, port = broker.door(door)
    return f"{host.removeprefix('tcp://')}:{port}"
