"""Batches of several topics in one commit: which of them share a block, and that each is read as it came."""

import sqlite3
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stafeta.columns import Block, ColumnBatch
from stafeta.message import COUNTER, PRODUCER, SOURCE, TIME, Kind
from stafeta.store.port import Append, Group, Span, TopicRecord
from stafeta.store.sqlite import SqliteStore
from tests.broker.stores import run
from tests.soundness import assert_sound

TOPICS = 4
LARGE = 1500  # rows of a batch that has a block of its own


def came(payloads: list[bytes], *, own_times: bool) -> ColumnBatch:
    """A batch as a door takes it in."""
    times: Any = pa.array(range(7, 7 + len(payloads)), pa.timestamp("us", "UTC")) if own_times else 0
    columns = (0, times, "", "", int(Kind.STRING), None, pa.array(payloads, pa.binary()))
    return ColumnBatch("", 0, len(payloads), Block(len(payloads), columns), 0)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, ColumnBatch, str, int | None]:
    """The number of a topic, a batch, its producer, and the sequence."""
    large = draw(st.integers(0, 9)) == 0
    payloads = [b"%d" % row for row in range(LARGE)] if large else draw(st.lists(st.binary(), min_size=1))
    batch = came(payloads, own_times=draw(st.booleans()))
    sequence = draw(st.none() | st.integers(1, 100))
    return draw(st.integers(1, TOPICS)), batch, draw(st.sampled_from(["", "a", "b"])), sequence


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.lists(batches(), min_size=1, max_size=8), min_size=1, max_size=4))
def test_what_shares_a_block_is_read_as_it_came(
    groups: list[list[tuple[int, ColumnBatch, str, int | None]]],
) -> None:
    with TemporaryDirectory() as folder:
        run(_check(Path(folder), groups))
        assert_sound(Path(folder))


async def _check(folder: Path, groups: list[list[tuple[int, ColumnBatch, str, int | None]]]) -> None:
    store = SqliteStore(folder)
    await store.open()
    topics = {id_: TopicRecord(id_, f"t{id_}", 1, 1, True, False) for id_ in range(1, TOPICS + 1)}
    await store.commit(Group(topics=topics))
    ends, position = dict.fromkeys(topics, 1), 1
    expected: dict[int, list[tuple[Any, ...]]] = {id_: [] for id_ in topics}
    for group in groups:
        appends: list[Append] = []
        for id_, batch, producer, sequence in group:
            placed = batch.placed(ends[id_], position, 99, producer, "here", sequence)
            appends.append(Append(id_, placed))
            ends[id_] += batch.count
            position += batch.count
            expected[id_] += _rows(placed)
        await store.commit(Group(appends=list(appends), position=position))
    for id_ in topics:
        found = [row for batch in await store.read(id_, 1, ends[id_], 1 << 30) for row in _rows(batch)]
        assert found == expected[id_]
        middle = ends[id_] // 2
        part = [row for batch in await store.read(id_, middle, ends[id_], 1 << 30) for row in _rows(batch)]
        assert part == expected[id_][max(middle - 1, 0) :]
    spans = [Span(id_, ends[id_] // 3, ends[id_]) for id_ in topics]
    wanted = [row for id_, start, _ in spans for row in expected[id_][max(start - 1, 0) :]]
    for size in (1, 1 << 30):
        assert await _scanned(store, spans, size) == sorted(wanted, key=itemgetter(1)), "in order of position"
    await store.close()


async def _scanned(store: SqliteStore, spans: list[Span], size: int) -> list[tuple[Any, ...]]:
    read, rows = store.scan(spans), []
    while batches := await read(size, 1):
        rows += [row for batch in batches for row in _rows(batch)]
    return rows


def _rows(batch: Any) -> list[tuple[Any, ...]]:
    columns = [batch.column(index) for index in (TIME, PRODUCER, SOURCE, COUNTER)]
    return list(zip(range(batch.base, batch.end), batch.positions, batch.payloads, *columns, strict=True))


def test_small_batches_share_a_block_and_large_ones_do_not(tmp_path: Path) -> None:
    run(_commit_one_group(tmp_path))
    with closing(sqlite3.connect(tmp_path / "stafeta.db")) as database:
        assert database.execute("SELECT count(*) FROM block").fetchone() == (3,)


async def _commit_one_group(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    appends: list[Append] = []
    position = 1
    for id_, rows in enumerate([5] * 50 + [LARGE] + [5] * 50, 1):
        batch = came([b"x"] * rows, own_times=True)
        appends.append(Append(id_, batch.placed(1, position, 0, "", "", None)))
        position += rows
    topics = {one.topic: TopicRecord(one.topic, f"t{one.topic}", 1, 1, True, False) for one in appends}
    await store.commit(Group(appends=list(appends), topics=topics, position=position))
    await store.close()
