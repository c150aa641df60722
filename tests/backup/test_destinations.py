"""Where backups go: folders, URLs and other file systems; what is told where one is full, damaged or in use."""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from stafeta.backup import points, restoring, taking
from stafeta.backup.destination import Destination, StoredFile, Throttle
from stafeta.backup.lease import Lease
from stafeta.broker import Broker
from stafeta.cli.main import main
from stafeta.errors import BackupError, StoreError
from tests.backup.lives import Life
from tests.broker.stores import FailingSqlite, run
from tests.soundness import assert_sound


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """A store with some messages, of which large ones lie in a segment."""
    one = Life(tmp_path, large=500)

    async def begin() -> None:
        await one.begin()
        await one.append([1, 2, 3])

    run(begin())
    yield one
    one.store.crash()


def copied(life: Life, destination: Destination) -> set[str]:
    """The kinds of the files that a backup makes."""
    before = set(destination.names("files"))
    taking.take(life.folder, destination)
    return {name.split("-")[2] for name in set(destination.names("files")) - before}


@pytest.mark.parametrize("kind", ["file://", "mock", "subtree"])
def test_any_file_system_of_arrow(life: Life, tmp_path: Path, kind: str) -> None:
    if kind == "file://":
        destination = Destination.of((tmp_path / "there").as_uri())
    elif kind == "mock":
        destination = Destination(fs._MockFileSystem(), "there")
    else:
        (tmp_path / "below").mkdir()
        destination = Destination(
            fs.SubTreeFileSystem(str(tmp_path / "below"), fs.LocalFileSystem()), "there"
        )
    assert copied(life, destination) == {"state.db", "segment"}
    run(life.append([1]))  # a small one
    assert copied(life, destination) == {"state.db"}
    for number, name in enumerate(points.names(destination)):
        point = points.find(destination, name)
        assert restoring.verify(destination, point) == []
        restoring.restore(destination, point, tmp_path / str(number))
        assert_sound(tmp_path / str(number))


def test_blocks_that_are_there_are_not_copied_again(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "PACK", 1000)
    for _ in range(8):
        run(life.append([1, 2, 3]))
    assert copied(life, life.destination) == {"blocks", "state.db", "segment"}
    run(life.append([1]))
    assert copied(life, life.destination) == {"state.db"}


class Small(Destination):
    """One with so much room."""

    room = 1 << 30

    def write(self, name: str, content: Iterable[Any], throttle: Throttle | None = None) -> StoredFile:
        return super().write(name, self._taken(content), throttle)

    def _taken(self, content: Iterable[Any]) -> Iterator[Any]:
        for piece in content:
            self.room -= len(piece)
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield piece


def test_a_destination_that_is_full_keeps_what_it_had(life: Life, tmp_path: Path) -> None:
    destination = Small(fs.LocalFileSystem(), str(tmp_path / "there"), "there")
    copied(life, destination)
    for room in (100, 1500, 20_000):
        destination.room = room
        with pytest.raises(
            BackupError, match=r"No room is left at there\. What was there before is as it was"
        ):
            copied(life, destination)
        (name,) = points.names(destination)
        assert restoring.verify(destination, points.find(destination, name)) == []
    destination.room = 1 << 30
    copied(life, destination)
    assert len(points.names(destination)) == 2


def test_what_killed_backups_have_left_unfinished_goes(life: Life, tmp_path: Path) -> None:
    life.back_up()
    left = [
        tmp_path / "backups" / folder / "20000101T000000.json.partial"
        for folder in ("files", "points", "running")
    ]
    for path in left:
        path.write_bytes(b"{")
    assert len(points.names(life.destination)) == 1
    life.back_up()
    assert not [path for path in left if path.exists()]
    assert len(points.names(life.destination)) == 2


def test_one_backup_at_a_time(life: Life) -> None:
    life.back_up()
    with (
        Lease(life.destination, "20000101T000000.000000Z-0000"),
        pytest.raises(BackupError, match=rf"Another backup to .* is being made, by process {os.getpid()} on"),
    ):
        life.back_up()
    life.back_up()
    assert points.names(life.destination, points.NOTES) == []


def test_what_is_damaged_is_told(life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    life.back_up()
    to, data = tmp_path / "backups", tmp_path / "restored"
    (segment,) = to.glob("files/*segment*")
    content = segment.read_bytes()
    segment.write_bytes(content[:-1] + b"?")
    assert main(["backup", "--verify", str(to)]) == 5
    assert "is damaged: it is not what was written." in capsys.readouterr().out
    assert main(["restore", str(to), "--data", str(data)]) == 5
    assert "is damaged" in capsys.readouterr().err
    with pytest.raises(StoreError, match=r"was not finished\. Restore it again"):
        run(Broker.open(FailingSqlite(data)))
    segment.write_bytes(content)
    assert main(["restore", str(to), "--data", str(data)]) == 0  # again, to the folder that was left
    assert "Sound: 3 messages of 3 topics" in capsys.readouterr().out
    assert main(["restore", str(to), "--data", str(data)]) == 5
    assert "is not empty" in capsys.readouterr().err
    (point,) = to.glob("points/*")
    point.write_bytes(point.read_bytes()[:-20])
    assert main(["backup", "--list", str(to), "--json"]) == 5
    said = json.loads(capsys.readouterr().out)
    assert said["points"] == []
    assert "was not written to its end" in said["damaged"][0]


def test_old_points_go_and_what_others_need_stays(
    life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["backup", str(tmp_path / "backups"), "--data", str(life.folder), "--json"]
    names = []
    for _ in range(3):
        assert main(words) == 0
        names.append(json.loads(capsys.readouterr().out)["point"])
        run(life.append([1, 2]))
    assert main([*words, "--keep", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["removed"] == 2
    assert main(["backup", "--list", str(tmp_path / "backups")]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["POINT", names[2], said["point"]]
    for at in (names[2], said["point"]):
        assert main(["backup", "--verify", str(tmp_path / "backups"), "--at", at]) == 0
    assert main(["backup", "--verify", str(tmp_path / "backups"), "--at", names[0]]) == 5
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backup", "{}/to", "--data", "{}/nothing"], "is not a data folder"),
        (["backup", "nowhere://x", "--data", "{}/data"], "nowhere://x cannot be used"),
        (["backup", "{}/to", "--data", "{}/data", "--keep", "0"], "--keep 0"),
        (["backup", "{}/to", "--data", "{}/data", "--at", "x"], "--at goes with --verify"),
        (["backup", "--verify", "{}/to"], "There is no backup at"),
        (["restore", "{}/to", "--data", "{}/new"], "There is no backup at"),
    ],
)
def test_wrong_words(
    life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main([word.format(tmp_path) for word in words]) != 0
    assert sentence in capsys.readouterr().err
