"""Collection takes what nobody wants, and nothing else: while topics share blocks, checkpoints go on, brokers crash."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.store.port import Append, Group, Promotion
from tests.broker.stores import FailingSqlite, run, shrink
from tests.soundness import assert_sound
from tests.store.test_store import batch, payloads, topic

TOPICS = range(1, 6)

topics = st.sampled_from(TOPICS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(topics, min_size=1, max_size=6)),
        st.tuples(st.just("release"), topics, st.integers(1, 5)),
        st.tuples(st.just("release all but"), topics),
        st.tuples(st.sampled_from(["sweep", "checkpoint", "crash"])),
    ),
    max_size=60,
)


class Life:
    """A store, and what has to be in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = dict.fromkeys(TOPICS, 1)
        self.next = dict.fromkeys(TOPICS, 1)
        self.position = 1

    async def begin(self) -> None:
        await self.open()
        await self.store.commit(Group(topics={id_: topic(id_) for id_ in TOPICS}))

    async def open(self) -> None:
        self.store = FailingSqlite(self.folder, checkpoint_rows=1)
        snapshot = await self.store.open()
        if self.position > 1:
            assert {one.id: one.next for one in snapshot.topics} == self.next

    async def do(self, step: tuple[object, ...]) -> None:
        match step:
            case "append", list() as ids:
                appends: list[Append | Promotion] = []
                for id_ in ids:
                    offset = self.next[id_]
                    appends.append(batch(id_, offset, b"%d %d" % (id_, offset), position=self.position))
                    self.next[id_] += 1
                    self.position += 1
                await self.commit(Group(appends=appends, position=self.position))
            case "release", int() as id_, int() as count:
                await self.release(id_, self.first[id_] + count)
            case "release all but", kept:
                for id_ in TOPICS:
                    if id_ != kept:
                        await self.release(id_, self.next[id_])
            case ("sweep",):
                await self.store.sweep()
            case ("checkpoint",):
                await self.store.commit(Group(checkpoint=True, position=self.position))
            case ("crash",):
                self.store.crash()
                assert_sound(self.folder)
                await self.open()

    async def release(self, id_: int, first: int) -> None:
        self.first[id_] = min(first, self.next[id_])
        await self.commit(Group(topics={id_: topic(id_, first=self.first[id_], next_=self.next[id_])}))

    async def commit(self, group: Group) -> None:
        group.checkpoint = self.store.checkpoint_due
        await self.store.commit(group)

    async def check(self) -> None:
        self.store._reader._cache.clear()  # what is in memory proves nothing
        for id_ in TOPICS:
            found = payloads(await self.store.read(id_, self.first[id_], self.next[id_], 1 << 20))
            assert found == [b"%d %d" % (id_, offset) for offset in range(self.first[id_], self.next[id_])]

    async def end(self) -> None:
        """When nobody wants anything, nothing is left."""
        for id_ in TOPICS:
            await self.release(id_, self.next[id_])
        for _ in range(3):
            while await self.store.sweep():
                pass
            await self.store.commit(Group(checkpoint=True, position=self.position))
        await self.store.close()
        assert_sound(self.folder)
        with closing(sqlite3.connect(self.folder / "stafeta.db")) as database:
            assert database.execute("SELECT count(*) FROM block").fetchone() == (0,)
            assert database.execute("SELECT count(*) FROM page").fetchone() == (0,)


def test_what_is_released_while_a_checkpoint_is_under_way_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, 1)

    async def work() -> None:
        life = Life(tmp_path)
        await life.begin()
        for step in [
            ("append", [1, 2, 3]),
            ("release", 2, 1),
            ("sweep",),
            ("checkpoint",),
            ("append", [2]),
            ("release", 2, 1),
            *[("sweep",)] * 3,
            ("release", 1, 1),
            *[("sweep",)] * 3,
        ]:
            await life.do(step)
            await life.check()
        await life.end()

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("small", [1, 3])
def test_what_is_wanted_stays_and_all_else_goes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    shrink(monkeypatch, small)

    @given(steps)
    def live(taken: list[tuple[object, ...]]) -> None:
        async def work() -> None:
            life = Life(tmp_path_factory.mktemp("life"))
            await life.begin()
            for step in taken:
                await life.do(step)
                await life.check()
            await life.end()

        run(work())

    live()
