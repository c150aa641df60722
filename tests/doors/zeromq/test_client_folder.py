"""What a client remembers in its folder, and what it says when it cannot."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from stafeta import Client
from stafeta.cli.exits import DATA_FOLDER, code_of
from stafeta.clients.zeromq.client_state import ClientState, FolderError, open_client_state
from stafeta.clients.zeromq.request_channel import Dialogue
from stafeta.clients.zeromq.requests import PublishBatch
from tests.brokers import BrokerProcess


def test_a_client_made_anew_with_its_folder_is_the_same(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str
) -> None:
    first = connect(lasting.address, "client")
    first.subscribe(topic)
    first.put_many(topic, ["a", "b"])
    message = first.get(topic)
    assert message is not None
    first.ack(message)
    first.close()
    second = connect(lasting.address, "client")
    assert second.count(topic) == 2
    assert [message.text for message in second.get_many(topic)] == ["b"]
    assert second.put(topic, "c") == 3


def test_a_client_without_a_folder_is_another_each_time(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str
) -> None:
    first, second = connect(lasting.address), connect(lasting.address)
    first.subscribe(topic)
    first.put(topic, "a")
    second.subscribe(topic)
    assert second.get(topic) is None
    assert second.put(topic, "b") == 2


def test_only_one_client_uses_a_folder_at_a_time(
    connect: Callable[..., Client], lasting: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    first = connect(lasting.address, "client")
    with pytest.raises(FolderError, match=rf"{tmp_path / 'client'} for 0.1 s") as caught:
        connect(lasting.address, "client", folder_wait=0.1)
    assert code_of(caught.value) == DATA_FOLDER
    program = (
        "import sys, stafeta\n"
        "print('waiting', flush=True)\n"
        "stafeta.Client(sys.argv[1], sys.argv[2], folder_wait=60).subscribe(sys.argv[3])\n"
    )
    arguments = [lasting.address, str(tmp_path / "client"), topic]
    second = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting\n"
    first.close()
    second.communicate()
    assert second.returncode == 0


def test_a_folder_of_a_newer_version_is_left_alone(connect: Callable[..., Client], tmp_path: Path) -> None:
    connect("127.0.0.1:1", "client").close()
    with closing(sqlite3.connect(tmp_path / "client" / "client.db")) as memory:
        memory.execute("PRAGMA user_version = 99")
    with pytest.raises(FolderError, match="newer version"):
        connect("127.0.0.1:1", "client")


def test_a_folder_of_an_older_version_is_brought_forward(
    connect: Callable[..., Client], lasting: BrokerProcess, tmp_path: Path, topic: str
) -> None:
    client = connect(lasting.address, "client")
    client.subscribe(topic)
    client.put_many(topic, ["a", "b"])
    message = client.get(topic)
    assert message is not None
    client.ack(message)
    client.close()
    with closing(sqlite3.connect(tmp_path / "client" / "client.db")) as memory:
        memory.executescript("ALTER TABLE positions DROP COLUMN mark; PRAGMA user_version = 1;")
    client = connect(lasting.address, "client")
    found = client.get_many(topic)
    assert [message.text for message in found] == ["b"]
    client.ack(found)


def test_a_damaged_folder_is_said_to_be_damaged(connect: Callable[..., Client], tmp_path: Path) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / "client.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(FolderError, match=r"client\.db cannot be used: file is not a database"):
        connect("127.0.0.1:1", "client")


def test_a_folder_that_cannot_be_made_is_named(connect: Callable[..., Client], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"file/client cannot be used: Not a directory"):
        connect("127.0.0.1:1", "file/client")


def test_a_full_disk_is_said_and_the_client_goes_on_when_there_is_room(
    lasting: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with Client(lasting.address, tmp_path / "client") as client:
        client.subscribe(topic)
        client.put(topic, "a")
        memory = client._core._open[0]._database  # type: ignore[index]
        pages = memory.execute("PRAGMA page_count").fetchone()[0]
        memory.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(FolderError, match="full"):
            client.put(topic, "x" * 100_000)
        memory.execute("PRAGMA max_page_count = 1000000")
        client.put(topic, "b")
        assert [message.text for message in client.get_many(topic)] == ["a", "b"]


def test_the_plain_client_does_not_import_asyncio() -> None:
    program = "import sys, stafeta; stafeta.Client; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("statement", range(1, 8))
def test_an_interrupt_between_two_statements_leaves_no_half_change(tmp_path: Path, statement: int) -> None:
    (state,) = _finished(open_client_state(tmp_path, 1.0))
    state.add("t", _parcel("one"))
    database, left = state._database, [statement]

    class Interrupted:
        """The database, of a person who presses Ctrl-C just before one of its statements."""

        def __getattr__(self, name: str) -> object:
            return getattr(database, name)

        def execute(self, *arguments: Any) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return database.execute(*arguments)

    state._database = cast("sqlite3.Connection", Interrupted())
    with suppress(KeyboardInterrupt):
        state.add("t", _parcel("two"))
    state._database = database
    state.add("t", _parcel("three"))
    entries, number = [], 0
    while (entry := state.after(number)) is not None:
        entries.append(entry)
        number = entry.number
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.batch.publications for entry in entries][-1] == b'["three"]'
    assert len(entries) in (2, 3)
    state.close()


def _parcel(text: str) -> PublishBatch:
    return PublishBatch(1, "string", "", f'["{text}"]'.encode())


def _finished(work: Dialogue[ClientState]) -> list[ClientState]:
    try:
        while True:
            next(work)
    except StopIteration as end:
        return [end.value]
