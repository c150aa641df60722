"""Power is lost in the middle of whatever a broker does: what was acknowledged is there, and nothing is half there.

Random lives of a broker are recorded, write by write and sync by sync. They are cut off anywhere, the files are made
that a loss of power may leave, and a broker is started on them.
"""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from stafeta.broker import Broker
from stafeta.errors import StoreDamaged
from stafeta.message import Batch
from stafeta.store.sqlite import segments, store
from stafeta.store.sqlite.folder import connect
from tests.faults.lives import Life, Settings, World, after_mark, promoted, seen
from tests.faults.power import (
    FOLDER,
    WAYS,
    Disk,
    Event,
    Mark,
    Named,
    SyncBegan,
    disk_after,
    found_on_disk,
    lay,
)
from tests.faults.recorder import Recorder
from tests.soundness import assert_sound

STATES_OF_A_LIFE = 20
TURNS = (30, 6, 6)
DATA = "data"
MEMORY = Path("/dev/shm")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(-(-metafunc.config.getoption("--states") // STATES_OF_A_LIFE)))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is such a thing: what is synced here is only recorded, and need not be."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


def settings_of(number: int) -> Settings:
    return Settings(
        durability=("fsync", "os")[number % 2],
        segments_from=(1, 2000, 256 << 10)[number // 2 % 3],
        small=(1, 3)[number // 6 % 2],
    )


def test_what_was_acknowledged_is_there_and_nothing_is_half_there(
    number: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(number)
    settings.shrink(monkeypatch)
    lose_power(settings, Random(f"life {number}"), place, tmp_path)


@pytest.mark.parametrize("what", ["commits", "segments"])
def test_what_is_not_synced_is_missed(
    what: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of this would prove nothing."""
    settings = settings_of(0)
    settings.shrink(monkeypatch)
    if what == "commits":
        monkeypatch.setattr(store, "connect", lambda *how, **more: unsynced(connect(*how, **more)))
    else:
        monkeypatch.setattr(segments, "os", OsWithoutSync())

    def try_some() -> None:
        for number in range(10):
            (place / str(number)).mkdir()
            lose_power(settings, Random(f"life {number}"), place / str(number), tmp_path)

    with pytest.raises((AssertionError, StoreDamaged)):
        try_some()


class OsWithoutSync:
    def fdatasync(self, file: int) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def unsynced(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def lose_power(settings: Settings, random: Random, place: Path, tmp_path: Path) -> None:
    """Three lives in a row, each of which ends with something that the next begins with."""
    world, events = World(), list[Event]()
    for at, turns in enumerate(TURNS):
        life = Life(settings, random, *begun(place / str(at), events), world)
        first = len(events)
        events = record(life, turns).events
        world = life.world
        if at:  # what was before it has been tried, and what it found is what counts from then on
            first = 1 + next(one for one in range(first, len(events)) if isinstance(events[one], Mark))
        count = STATES_OF_A_LIFE // len(TURNS) + (at < STATES_OF_A_LIFE % len(TURNS))
        check_states(settings, random, events, first, count, world, tmp_path)
        events = ended(events, first, random)


def ended(events: list[Event], first: int, random: Random) -> list[Event]:
    """What the next broker begins with. Either its predecessor is killed: what was not synced by then still is not. Or
    power is lost, and all that is left of the files is on the disk."""
    about_to_sync = unsynced_at(events, first) or [len(events)]
    cut = random.choice((random.randint(first, len(events)), random.choice(about_to_sync)))
    if random.random() < 0.6:
        return events[:cut]
    marks = [event for event in events[:cut] if isinstance(event, Mark)]
    state = disk_after(events[:cut]).left(random.choice(("synced", "torn", "torn")), random)
    return [*found_on_disk(state), *marks]


def unsynced_at(events: Sequence[Event], first: int) -> list[int]:
    """Where all is written that is about to be synced."""
    return [at for at in range(first, len(events)) if isinstance(events[at], SyncBegan)]


def test_what_a_start_finds_of_a_killed_broker_stays(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not be on the disk yet; but nobody sends again what he is told is stored."""
    settings, random = Settings("fsync", 256 << 10, 3), Random(0)
    settings.shrink(monkeypatch)
    life = Life(settings, random, *begun(place / "first", []), World())
    events = record(life, 15).events
    for cut in unsynced_at(events, 0)[-12:]:
        next_life = Life(settings, random, *begun(place / str(cut), events[:cut]), life.world)
        found = record(next_life, 0).events
        first = next(at for at in range(cut, len(found)) if isinstance(found[at], Mark))
        state = disk_after(found[: first + 1]).left("synced", random)
        point = len(next_life.world.points) - 1
        check_state(settings, state, next_life.world, point, point, tmp_path, f"killed at {cut}")


def test_a_folder_that_a_killed_broker_has_made_stays(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, random = Settings("fsync", 1, 3), Random(0)
    settings.shrink(monkeypatch)
    events = record(Life(settings, random, *begun(place / "first", []), World()), 0).events
    made = [Named(DATA, FOLDER)]
    assert events[:1] == made
    life = Life(settings, random, *begun(place / "second", list(made)), World())
    state = disk_after(record(life, 5).events).left("synced", random)
    point = len(life.world.points) - 1
    check_state(settings, state, life.world, point, point, tmp_path, "killed when the folder was made")


def begun(root: Path, events: list[Event]) -> tuple[Path, Recorder]:
    root.mkdir()
    disk = disk_after(events)
    lay(disk.left("all", Random(0)), root)
    return root / DATA, Recorder(root, events, disk)


def record(life: Life, turns: int) -> Recorder:
    with life.recorder.recording():
        asyncio.run(life.live(turns))
    life.recorder.check()
    return life.recorder


def cuts(events: Sequence[Event], first: int, count: int, random: Random) -> list[int]:
    """Anywhere; and in the very beginning; and just after something was acknowledged, when it has to be there already;
    or after a file was removed, when nothing may need it any more."""
    everywhere = range(first, len(events) + 1)
    marks = [at + 1 for at in everywhere[:-1] if isinstance(events[at], Mark)] or everywhere
    removed = [at + 1 for at in everywhere[:-1] if events[at][1:] == (None,)] or marks
    places: tuple[Sequence[int], ...] = (range(first, marks[0] + 1), marks, marks, removed, everywhere)
    return sorted(random.choice(random.choice(places)) for _ in range(count))


def check_states(
    settings: Settings,
    random: Random,
    events: Sequence[Event],
    first: int,
    count: int,
    world: World,
    tmp_path: Path,
) -> None:
    disk, done = Disk(), 0
    low = high = 0
    for cut in cuts(events, first, count, random):
        for event in events[done:cut]:
            disk.do(event)
            if isinstance(event, Mark):
                low, high = after_mark(low, high, event)
        done = cut
        way = random.choice((*WAYS, "torn", "torn"))
        # A killed process alone costs nothing in either case: what it has written is with the system.
        least = low if settings.durability == "fsync" or way == "all" else 0
        check_state(settings, disk.left(way, random), world, least, high, tmp_path, f"cut {cut}, {way}")


def check_state(
    settings: Settings,
    state: dict[str, bytes | None],
    world: World,
    low: int,
    high: int,
    tmp_path: Path,
    told: str,
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as root:
        lay(state, Path(root))
        try:
            asyncio.run(check(settings, Path(root, DATA), world, low, high))
            assert_sound(Path(root, DATA))
        except BaseException as error:
            kept = tmp_path / "state"
            kept.mkdir()
            lay(state, kept)
            error.add_note(f"{settings}, {told}, points {low} to {high}; the state is kept in {kept}")
            raise


async def check(settings: Settings, folder: Path, world: World, low: int, high: int) -> None:
    """One of these points is there, and a broker can go on from it."""
    broker = await Broker.open(settings.store(folder), tail=2000)
    try:
        found = seen(broker)
        points = [at for at in range(low, high + 1) if world.points[at] == found]
        if not points:
            assert found == world.points[low]
        for name, (_, first, end, _) in found.topics.items():
            assert await payloads(broker, name) == world.payloads.get(name, [])[first - 1 : end - 1]
        check_retries(broker, world)
        await check_staged(broker, world)
        published = [name for name, topic in broker.topics.items() if topic.exists]
        for name in (*published, "after"):
            broker.publish(name, b"after", create=True)
        await broker.commit()
        expected = seen(broker)
    finally:
        await broker.close()
    broker = await Broker.open(settings.store(folder), tail=2000)
    try:
        assert seen(broker) == expected
        for name in (*published, "after"):
            assert (await payloads(broker, name))[-1] == b"after"
        await broker.collector.collect()
    finally:
        await broker.close()


async def payloads(broker: Broker, name: str) -> list[bytes]:
    topic = broker.topics[name]
    batches: list[Batch] = []
    at = topic.first
    while at < topic.visible:
        batches += await broker.read(topic, at, 1 << 20)
        assert batches[-1].end > at
        at = batches[-1].end
    return [payload for batch in batches for payload in batch.payloads]


def check_retries(broker: Broker, world: World) -> None:
    """What is there is recognised when it is sent again."""
    for (name, client), dedup_window in world.dedup_window.items():
        topic = broker.topics.get(name)
        known = [] if topic is None else [draw for draw in dedup_window if draw[2] < topic.next]
        if topic is not None and topic.exists and known:
            counter, payload, offset = known[-1]
            end = topic.next
            assert broker.publish_once(name, payload, client, counter) == offset
            assert topic.next == end
    for topic in broker.topics.values():
        for producer in topic.producers or {}:
            if topic.exists and producer.startswith("seq-"):
                end = topic.next
                broker.publish_sequence(
                    topic.name, [b""], producer, broker.next_sequence(topic.name, producer) - 1
                )
                assert topic.next == end


async def check_staged(broker: Broker, world: World) -> None:
    """What was put aside is as it was: committed, it is what was to be published."""
    for key, records in list(broker.staging._staged.items()):
        if not records:
            continue
        staged = world.staged[key][: sum(len(one.runs) for one in records)]
        parts = list(dict.fromkeys(part for part, _, _ in staged))
        before = {name: topic.next for name, topic in broker.topics.items()}
        await broker.staging.verify(*key)
        await broker.staging.commit(*key, parts)
        expected: dict[str, list[bytes]] = {}
        for name, added in promoted(staged, parts):
            expected.setdefault(name, []).extend(added)
        for name, added in expected.items():
            topic = broker.topics[name]
            known = before.get(name, 1) - topic.first
            assert (await payloads(broker, name))[known:] == added
