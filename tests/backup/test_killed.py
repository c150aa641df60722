"""Whoever is killed with SIGKILL while a backup is made or restored, and whenever: what is there is whole, and the next
one goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from pyarrow import fs

import stafeta
from stafeta.backup import points, restoring, taking
from stafeta.backup.destination import PARTIAL
from stafeta.broker import Broker
from stafeta.cli.main import main
from stafeta.errors import StoreError
from stafeta.store.sqlite.folder import RESTORING
from stafeta.testing.broker import plain_environment
from tests.backup.killed_command import PACK
from tests.backup.lives import Interrupting, Life
from tests.broker.stores import FailingSqlite, run
from tests.brokers import BrokerProcess
from tests.fork_server import FORKS
from tests.soundness import assert_sound
from tests.waiting import PATIENCE

FEW = 15  # moments at which somebody is killed
MANY = pytest.param(100, marks=pytest.mark.soak)


def command(before: int, after: int, *words: object) -> "CompletedProcess[str]":
    """A command that is killed at a line before a point is written, or at one after that (0: at none)."""
    lines = str(before), str(after)
    found = FORKS.run(["-m", "tests.backup.killed_command", *lines, *map(str, words)], plain_environment())
    assert found.returncode in (0, -signal.SIGKILL), found.stderr
    return found


def lines_of(found: "CompletedProcess[str]") -> tuple[int, int]:
    before, after = found.stderr.splitlines()[-1].split()
    return int(before), int(after)


def moments(lines: int, count: int) -> list[int]:
    """Lines from the first to the last."""
    return [1 + (lines - 1) * number // (count - 1) for number in range(count)]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """A store with messages in packs and segments, and one backup of it."""
    monkeypatch.setattr(taking, "PACK", PACK)
    one = Life(tmp_path, large=500)

    async def begin() -> None:
        await one.begin()
        for _ in range(6):
            await one.append([1, 2, 3])

    run(begin())
    one.back_up()
    yield one
    one.store.crash()


@pytest.mark.slow
@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_backup(life: Life, tmp_path: Path, count: int) -> None:
    words = ("backup", tmp_path / "backups", "--data", life.folder, "--keep", "2")
    before_point, after_point = lines_of(command(0, 0, *words))
    life.look_for_points()
    made = killed = 0
    lines = [(line, 0) for line in moments(before_point, count)]
    lines += [(0, line) for line in moments(after_point, count // 5)]
    for number, at in enumerate(lines):
        run(life.append([1, 2, 3]))
        before = points.names(life.destination)
        died = command(*at, *words).returncode != 0
        life.look_for_points()
        known, wrong = points.all_points(life.destination)
        assert not wrong
        assert before[-1:] == [point.name for point in known if point.name in before][-1:], (
            "the last one stays"
        )
        new = known[-1].name not in before
        assert new or died
        killed += died
        made += died and new
        run(life.check_points())
        if number % 4 == 3:
            life.back_up(keep=2)
            run(life.check_points())
            left = [path for path in (tmp_path / "backups").rglob("*") if path.name.endswith(PARTIAL)]
            assert not left, "what the killed ones have left unfinished goes"
    assert killed > count // 2
    assert 0 < made < killed, "some were killed before their points were there, and some after"


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_restore(life: Life, tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    def words(number: object) -> list[str]:
        return ["restore", str(tmp_path / "backups"), "--data", str(tmp_path / f"restored-{number}")]

    lines, _ = lines_of(command(0, 0, *words("whole")))
    unfinished = 0
    for number, line in enumerate(moments(lines, count)):
        folder = tmp_path / f"restored-{number}"
        assert command(line, 0, *words(number)).returncode != 0 or line == lines
        found = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if RESTORING in found:
            unfinished += 1
            with pytest.raises(StoreError, match=r"was not finished\. Restore it again"):
                run(Broker.open(FailingSqlite(folder)))
        if RESTORING in found or not found - {"lock"}:
            assert main(words(number)) == 0
        capsys.readouterr()
        assert_sound(folder)
        assert run(texts(folder)) == [life.payload(1, offset) for offset in life.held[1]]
    assert unfinished > count // 2


async def texts(folder: Path) -> list[bytes]:
    broker = await Broker.open(FailingSqlite(folder))
    topic = broker.topic("t1")
    batches = await broker.read(topic, topic.first, 1 << 20)
    found = [payload for batch in batches for payload in batch.payloads]
    await broker.close()
    return found


@pytest.mark.parametrize("comes_back", [False, True], ids=["and stays away", "and comes back"])
def test_the_broker_while_it_is_backed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], comes_back: bool
) -> None:
    large = "." * (300 << 10)  # which lies in a segment
    with BrokerProcess(tmp_path / "data", doors=("flight",)) as broker:

        def publish(*texts: str) -> None:
            with stafeta.connect(broker.flight, timeout=PATIENCE) as connection:
                connection.hold("t", name="held")
                for text in texts:
                    connection.publish("t", [text])

        def interrupt() -> None:
            broker.kill()
            if comes_back:
                broker.start()
                publish("after")

        publish("1", large, "2")
        made = taking.take(broker.data, Interrupting(fs.LocalFileSystem(), tmp_path / "backups", interrupt))
    assert restoring.verify(Interrupting(fs.LocalFileSystem(), tmp_path / "backups"), made.point) == []
    restored = tmp_path / "restored"
    assert main(["restore", str(tmp_path / "backups"), "--data", str(restored)]) == 0, capsys.readouterr()
    with BrokerProcess(restored, doors=("flight",)) as broker:
        with stafeta.connect(broker.flight, timeout=PATIENCE) as connection:
            payloads = connection.read("t")["payload"].to_pylist()
        assert payloads[:3] == [b"1", large.encode(), b"2"], "all that was acknowledged before it began"
        assert payloads[3:] in ([], [b"after"])
