"""One flipped bit anywhere in a data folder: nothing wrong is ever handed out, nothing goes without a word.

`make torture` tries a thousand, and prints the table that is in docs/reliability.md.
"""

import logging
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from stafeta.broker import Broker
from stafeta.doors.flight.decode_batches import take
from stafeta.errors import StafetaError, StoreDamaged, StoreError
from stafeta.examination import examine
from stafeta.message import Kind
from stafeta.names import COUNTER_PREFIX
from stafeta.store.sqlite import SqliteStore
from tests.broker.stores import run

SEGMENTS_FROM = 2000
NAMES = ("t/0", "t/1", "t/2", "t/3", "bulk", "staged")


class State(NamedTuple):
    """All that a folder has to remember."""

    topics: dict[str, tuple[int, int]]
    messages: dict[tuple[str, int], bytes]
    cursors: dict[tuple[str, str, str], Any]
    sequences: dict[tuple[str, str], int]
    counters: dict[tuple[str, str], Any]
    done: dict[str, int]
    staged: dict[str, int]
    client_id: int


async def opened(folder: Path) -> Broker:
    return await Broker.open(SqliteStore(folder, checkpoint_rows=60, segments_from=SEGMENTS_FROM), tail=0)


async def fill(folder: Path) -> Broker:
    """A life with a bit of everything, most of it before a checkpoint and some after it."""
    broker = await opened(folder)
    broker.subscribe("1", "t/#")
    broker.subscribe("2", "t/1")
    broker.subscribe("reader", "bulk")
    broker.subscribe("reader", "staged")
    for _ in range(5):
        broker.new_client()
    for number in range(25):
        for topic in range(3):
            broker.publish_once(f"t/{topic}", b"m%d" % number, "7", number * 3 + topic)
        await broker.commit()
        if number % 5 == 4:
            broker.publish_sequence("t/3", [b"s%d" % number, b"s"], "counts", number // 5 * 2 + 1)
            await broker.commit()
        if number % 8 == 7:
            rows = pa.record_batch(
                {"payload": pa.array([b"%d-%d" % (number, row) * 9 for row in range(100)])}
            )
            broker.append("bulk", take(rows, "bulk", 1, 1 << 30), "", "flight/p", number // 8 * 100 + 1)
            await broker.commit()
            await broker.collector.collect()
    await copied(broker)
    one, two = broker.subscription("1", "t/#"), broker.subscription("2", "t/1")
    for start, stop in ((1, 5), (7, 9), (12, 13)):
        broker.ack(one, broker.topic("t/1"), start, stop)
    broker.ack(one, broker.topic("t/2"), 1, 11)
    broker.ack(two, broker.topic("t/1"), 1, 6)
    await broker.commit()
    await broker.collector.collect()
    await broker.staging.stage("flight/spark", 1, "a", "staged", [(Kind.STRING, b"x" * 500)] * 6)
    await broker.staging.commit("flight/spark", 1)
    await broker.staging.stage("flight/spark", 2, "a", "staged", [(Kind.STRING, b"waits" * 100)] * 6)
    for number in range(15):
        broker.publish("t/0", b"last %d" % number)
        await broker.commit()
    return broker


async def copied(broker: Broker) -> None:
    """Brings what is in the write-ahead log into the database."""
    store = broker._store
    assert isinstance(store, SqliteStore)
    await store._on(store._copy_thread, store._copy)


async def seen(broker: Broker) -> tuple[State, list[StoreDamaged]]:
    """What a broker knows and hands out, and the sentences with which it refuses the rest."""
    refused: list[StoreDamaged] = []
    messages: dict[tuple[str, int], bytes] = {}
    existing = {name: topic for name, topic in broker.topics.items() if topic.exists}
    for name, topic in existing.items():
        at = topic.first
        while at < topic.visible:
            try:
                batches = await broker.read(topic, at, 500)
            except StoreDamaged as error:
                refused.append(error)
                at = max(error.stop, at + 1)
                continue
            for batch in batches:
                messages.update(
                    {(name, offset): body for offset, body in enumerate(batch.payloads, batch.base)}
                )
            at = batches[-1].end if batches else topic.visible
    cursors = {
        (subscription.client, subscription.filter, name): (cursor.floor, tuple(cursor.pending(topic.visible)))
        for name, topic in existing.items()
        for subscription, cursor in topic.cursors()
    }
    producers = {(name, p): s for name, topic in existing.items() for p, s in (topic.producers or {}).items()}
    counters = {key: s for key, s in producers.items() if key[1].startswith(COUNTER_PREFIX)}
    state = State(
        {name: (topic.first, topic.visible) for name, topic in existing.items()},
        messages,
        cursors,
        {key: broker.next_sequence(*key) for key in producers if key not in counters},
        {key: state.encode() for key, state in counters.items()},
        dict(broker.staging._done),
        {
            f"{producer} {number}": sum(rows.values())
            for (producer, number), rows in broker.staging._rows.items()
            if rows
        },
        broker.registry._client_id,
    )
    return state, refused


class Folders(NamedTuple):
    stopped: Path
    killed: Path
    expected: State


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    stopped, killed = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("killed")

    async def work() -> State:
        broker = await fill(stopped)
        expected, refused = await seen(broker)
        assert not refused
        # While it is quiet, its files are what a kill would leave.
        shutil.copytree(stopped, killed, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-shm", "lock"))
        await broker.close()
        return expected

    expected = run(work())
    with closing(sqlite3.connect(stopped / "stafeta.db")) as database:
        database.executescript("PRAGMA incremental_vacuum")  # what is free nobody would miss
    return Folders(stopped, killed, expected)


def files_of(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "stafeta.db-shm")
    )


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def differences(expected: State, found: State) -> list[str]:
    return [name for name in State._fields if getattr(expected, name) != getattr(found, name)]


def wrong(expected: State, found: State) -> list[object]:
    """Messages that were handed out and are not what was published there."""
    return [
        key
        for key, body in found.messages.items()
        if expected.messages.get(key, b"") != body and key[0] in NAMES
    ]


async def outcome(folder: Path, expected: State, lines: list[str]) -> str:
    """What became of a folder in which a bit was flipped; raises where that must not be."""
    try:
        broker = await opened(folder)
    except StoreError:
        return "refused with a sentence"
    try:
        try:
            await broker.collector.collect()
        except StoreError as error:  # which the collector logs, where it runs by itself
            logging.getLogger("stafeta").warning("%s", error)
        found, refused = await seen(broker)
    finally:
        await broker.close()
    assert not wrong(expected, found)
    if differences(expected, found) or refused:
        assert lines or refused, f"without a word: {differences(expected, found)}"
        return "told, and all else served"
    return "put right, and told" if lines else "without effect"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_no_flipped_bit_goes_unnoticed_or_ends_in_a_traceback(
    tmp_path: Path,
    folders: Folders,
    how: str,
    caplog: pytest.LogCaptureFixture,
    pytestconfig: pytest.Config,
) -> None:
    whole: Path = getattr(folders, how)
    table: Counter[tuple[str, str]] = Counter()
    kinds = {
        "database": [path for path in files_of(whole) if path.name == "stafeta.db"],
        "write-ahead log": [
            path for path in files_of(whole) if path.name.endswith("-wal") and path.stat().st_size
        ],
        "segments": [path for path in files_of(whole) if path.parent.name == "segments"],
    }
    present = [kind for kind, paths in kinds.items() if paths]
    assert present == (list(kinds) if how == "killed" else ["database", "segments"])
    flips = pytestconfig.getoption("--flips") // 2
    for number in range(flips):
        draw = random.Random(f"{how} {number}")
        kind = present[number % len(present)]
        path = draw.choice(kinds[kind])
        # Most of a page is empty: where something is written, it matters.
        at = draw.choice([at for at, byte in enumerate(path.read_bytes()) if byte])
        bit = 8 * at + draw.randrange(8)
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        flip(folder / path.relative_to(whole), bit)
        caplog.clear()
        lines: list[str] = []
        with caplog.at_level(logging.WARNING, "stafeta"):
            try:
                result = run(outcome(folder, folders.expected, lines := _Lines(caplog)))
                table[kind, result] += 1
                if not repaired(folder, folders.expected, torn="left out" in caplog.text):
                    table[kind, "not to be repaired"] += 1
            except Exception as error:
                raise AssertionError(
                    f"bit {bit} of {path.name} ({how}, {number}): {error!r}\n{lines}"
                ) from error
        shutil.rmtree(folder)
    for few in ("refused with a sentence", "not to be repaired"):  # to refuse everything would be no answer
        assert sum(count for (_, result), count in table.items() if result == few) <= flips // 5
    print()
    for (kind, result), count in sorted(table.items()):
        print(f"| {how} | {kind} | {result} | {count} |")


class _Lines(list[str]):
    """What is logged, as of whenever it is asked."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __bool__(self) -> bool:
        return bool(self._caplog.records)

    def __repr__(self) -> str:
        return self._caplog.text


def repaired(folder: Path, expected: State, *, torn: bool) -> bool:
    """Whatever a flipped bit has done, a repair makes a folder that is sound and starts, or says why it cannot. `torn`:
    the last commits were told to be lost before."""
    try:
        _, lost = examine(folder, repair=True)
    except StafetaError:
        return False
    report, _ = examine(folder)
    assert report.sound, [finding.sentence for finding in report.findings]

    async def work() -> None:
        broker = await opened(folder)
        found, refused = await seen(broker)
        await broker.close()
        assert not refused
        assert not wrong(expected, found)
        gone = [key for key in expected.messages if key not in found.messages]
        told = {
            (f.topic, offset) for f in (lost.findings if lost else ()) for offset in range(f.start, f.stop)
        }
        unsaid = [key for key in gone if key not in told and key[0] in found.topics]
        if torn:  # as the log says: the last commits, where they are not synced one by one
            unsaid = [key for key in unsaid if key[0] not in ("t/0", "staged")]
        assert not unsaid, "gone without a word"
        if any(key[0] not in found.topics for key in gone):
            assert lost is not None
            assert lost.findings

    run(work())
    return True
