"""Disks that are full, read-only, damaged, or in use: a sentence each, and nothing lost."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stafeta import Client
from stafeta.broker.commits import RETRY_INTERVAL
from stafeta.errors import Unavailable
from tests.brokers import BrokerProcess
from tests.doors.zeromq.peers import Peer, read_get
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
        "--http",
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
        time.sleep(RETRY_INTERVAL)  # else a small message may have found the room that a large one did not
        assert peer.ask("PUT t after") == "ACK"
        stored += ["z" * 20_000, "after"]
        broker.wait_for_line("messages are stored again")
        assert broker.stderr.count("messages are refused") == 2, (
            "a line a fault and a start, not a line a message"
        )
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


def stafeta(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stafeta", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_damaged_page_is_an_error_for_those_who_read_it_only_and_skipped_when_told_to(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    filled(data)
    damage(data / "stafeta.db", b"bad-20-")
    found = stafeta("check", "--data", str(data), "--json")
    assert found.returncode == DATA_FOLDER_UNUSABLE
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["topic"], finding["first"], finding["last"]) == ("bad", 21, 21)
    with BrokerProcess(data, damaged=True) as broker, Peer(broker.address) as peer:
        assert len(peer.got("a", "bad")) == 20, "what comes before it is whole"
        assert peer.ask(f"ACK a bad {','.join(map(str, range(1, 21)))}") == "ACK"
        reply = peer.ask("GET a bad")
        assert reply.startswith("ERROR The message 21 of 'bad' cannot be read: Stored batch "), reply[:200]
        assert "checksum does not match" in reply
        assert "`stafeta skip bad 21-21`" in reply
        assert len(peer.got("a", "good")) == 50
        assert peer.ask("PUT bad more") == "ACK"
        broker.wait_for_line("checksum does not match")
        to = ("--broker", broker.address, "--state", str(tmp_path / "state"))
        for wrong, why in (
            ("21-22", "Message 22 of 'bad' can be read"),
            ("22", "Message 22 of 'bad' can be read"),
            ("60", "are not within 'bad', which has "),
            ("5-4", "are no offsets"),
            ("x", "are no offsets"),
        ):
            refused = stafeta("skip", "bad", wrong, *to)
            assert refused.returncode in (1, 2)
            assert why in refused.stderr
        done = stafeta("skip", "bad", "21", *to)
        assert (done.returncode, done.stdout) == (0, "Skipped 21 to 21 of bad.\n")
        broker.restart()
        assert [id_ for id_, _ in peer.got("a", "bad")] == [*range(22, 52)]


def test_one_damaged_topic_does_not_hold_up_those_who_read_others_with_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, doors=("frames",)) as broker, Peer(broker.address) as peer:
        assert peer.ask("SUB a t/#") == "ACK"
        assert peer.ask("SUB b t/#") == "ACK"
        for topic in range(30):
            for number in range(3):
                assert peer.ask(f"PUT t/{topic} {topic}-{number}-{'x' * 300}") == "ACK"
        assert broker.stop() == 0
    for topic in (3, 17):
        damage(data / "stafeta.db", b"%d-0-" % topic)
    with BrokerProcess(data, damaged=True) as broker, Peer(broker.address) as peer:
        seen: list[str] = []
        while not (reply := peer.ask("GET a t/#")).startswith("ERROR"):
            messages = read_get(reply)
            seen += [text for _, text in messages]
            assert peer.ask(f"ACK a t/# {','.join(str(id_) for id_, _ in messages)}") == "ACK"
        assert len(seen) == 28 * 3
        assert "cannot be read" in reply
        to = ("--broker", broker.address, "--state", str(tmp_path / "state"))
        for topic in (3, 17):
            assert stafeta("skip", f"t/{topic}", "1", *to).returncode == 0
        rest = peer.got("a", "t/#")
        assert [text.split("-x")[0] for _, text in rest] == ["3-1", "3-2", "17-1", "17-2"]


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
