"""Disks that are full, read-only, damaged, or in use: a sentence each, and nothing lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta import Client
from stafeta.errors import Unavailable
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer
from tests.waiting import PATIENCE

DATA_FOLDER_UNUSABLE = 5


def mount(folder: Path, *options: str) -> None:
    found = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"this needs the right to mount a file system: {found.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=8M", "tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def serve(data: Path) -> subprocess.CompletedProcess[str]:
    """A broker that is expected to refuse."""
    command = [
        sys.executable,
        "-m",
        "stafeta",
        "serve",
        "--zeromq",
        "0",
        "--devices",
        "off",
        "--frames",
        "off",
        "--flight",
        "off",
    ]
    command += ["--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_full_disk_refuses_loses_nothing_and_recovers(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    stored: list[str] = []
    with BrokerProcess(small_disk / "data") as broker, Peer(broker.address) as peer:
        assert peer.ask("SUB a t") == "ACK"
        reply = "ACK"
        for number in range(2000):
            text = f"{number}-{'x' * 20_000}"
            reply = peer.ask(f"PUT t {text}")
            if reply != "ACK":
                break
            stored.append(text)
        assert reply.startswith("ERROR No room is left for the data folder"), reply[:200]
        assert peer.told("PUT", "t", "c", counter=1, publication="y" * 20_000)["body"]["retry"] is True
        seen = peer.got("a", "t")
        assert [text for _, text in seen] == stored[: len(seen)], "reading goes on"
        assert len(seen) > 5
        broker.restart()
        assert peer.got("a", "t") == seen, "also after a restart"
        with Client(broker.address, tmp_path / "client") as client:
            with pytest.raises(Unavailable, match="is kept and goes out first"):
                client.put("t", "z" * 20_000)
            ballast.unlink()
            client.flush()
        assert peer.ask("PUT t after") == "ACK"
        stored += ["z" * 20_000, "after"]
        assert broker.stderr.count("messages are refused") == 2, (
            "a line a fault and a start, not a line a message"
        )
        assert "messages are stored again" in broker.stderr
        broker.restart()
        with Peer(broker.address) as again:
            assert consumed(again) == list(enumerate(stored, 1))


def consumed(peer: Peer) -> list[tuple[int, str]]:
    """Gets and acknowledges all that waits for subscriber a."""
    messages: list[tuple[int, str]] = []
    while batch := peer.got("a", "t"):
        assert peer.ask(f"ACK a t {','.join(str(id_) for id_, _ in batch)}") == "ACK"
        messages += batch
    return messages


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system read-only")
def test_a_read_only_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    (folder / "data").mkdir(parents=True)
    mount(folder, "-t", "tmpfs", "-o", "ro", "tmpfs")
    try:
        found = serve(folder / "data")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert found.returncode == DATA_FOLDER_UNUSABLE
    assert "cannot be used: Read-only file system" in found.stderr
    assert found.stderr.count("\n") == 1, found.stderr


def test_a_second_broker_on_the_folder_is_refused_and_told_who_has_it(broker: BrokerProcess) -> None:
    found = serve(broker.data)
    assert found.returncode == DATA_FOLDER_UNUSABLE
    assert f"in use by another broker (process {broker.pid})" in found.stderr
    with Peer(broker.address) as peer:
        assert peer.ask("SUB a t") == "ACK"


def filled(data: Path) -> None:
    """A folder with 50 messages on each of two topics, each in a batch of its own."""
    with BrokerProcess(data) as broker:
        with Peer(broker.address) as peer:
            for name in ("good", "bad"):
                assert peer.ask(f"SUB a {name}") == "ACK"
                for number in range(50):
                    assert peer.ask(f"PUT {name} {name}-{number}-{'x' * 300}") == "ACK"
        assert broker.stop() == 0


def test_a_damaged_page_is_an_error_for_those_who_read_it_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    filled(data)
    damage(data / "stafeta.db", b"bad-20-")
    with BrokerProcess(data) as broker, Peer(broker.address) as peer:
        reply = peer.ask("GET a bad")
        assert reply.startswith("ERROR Stored batch "), reply[:200]
        assert "checksum does not match" in reply
        assert "offsets 21 to 21" in reply
        assert len(peer.got("a", "good")) == 50
        assert peer.ask("PUT bad more") == "ACK"
        broker.wait_for_line("checksum does not match")


def damage(database: Path, text: bytes) -> None:
    content = bytearray(database.read_bytes())
    at = content.index(text)
    content[at : at + len(text)] = bytes(len(text))
    database.write_bytes(content)


def test_a_database_that_is_no_database_any_more_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    filled(data)
    with (data / "stafeta.db").open("r+b") as file:
        file.write(os.urandom(4096))
    found = serve(data)
    assert found.returncode == DATA_FOLDER_UNUSABLE
    assert "is damaged" in found.stderr
    assert "Restore the folder from a copy" in found.stderr


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    filled(data)
    database = sqlite3.connect(data / "stafeta.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    copy = tmp_path / "copy.db"
    shutil.copy(data / "stafeta.db", copy)
    found = serve(data)
    assert found.returncode == DATA_FOLDER_UNUSABLE
    assert "written by a newer Stafeta" in found.stderr
    assert (data / "stafeta.db").read_bytes() == copy.read_bytes()
