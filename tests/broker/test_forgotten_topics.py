"""Removed topics are remembered up to a limit; a forgotten one's offsets do not come again."""

import sqlite3
from contextlib import closing
from itertools import count as count_from
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker, Limits
from stafeta.broker.trie import NameTrie
from stafeta.errors import LimitReached, StoreFull
from stafeta.store.sqlite.forgotten import Forgotten
from tests.broker.stores import FailingMemory, FailingSqlite, run, shrink
from tests.soundness import assert_sound

LIMITS = Limits(max_topics=3)


@given(st.lists(st.integers(1, 40), unique=True))
def test_ranges_hold_what_was_added(added: list[int]) -> None:
    ranges = Forgotten()
    stored: dict[int, int] = {}
    for topic in added:
        (start, stop), gone = ranges.add(topic)
        stored.pop(gone or -1, None)
        stored[start] = stop
    for known in (ranges, Forgotten(stored.items()), ranges.copy()):
        assert [topic for topic in range(45) if topic in known] == sorted(added)
        assert known.last == max(added, default=0)
    ends = sorted(stored.items())
    assert all(stop < start for (_, stop), (start, _) in pairwise(ends)), "neighbours are joined"


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=30))
def test_names_are_taken_out_of_their_trie(steps: list[tuple[str, bool]]) -> None:
    trie: NameTrie[str] = NameTrie()
    there: set[str] = set()
    for name, comes in steps:
        if comes:
            trie.add(name, name)
            there.add(name)
        else:
            trie.discard(name)
            there.discard(name)
        assert set(trie.matching("#")) == there
    for name in there:
        trie.discard(name)
    assert not trie._root


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("live"), st.integers(0, 12), st.integers(1, 3)),
        st.tuples(st.sampled_from(["stop", "crash", "collect", "sweep", "fail"])),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_a_name_that_was_forgotten_goes_on_above_all_offsets_that_it_had(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shrink(monkeypatch, 1)

    @given(STEPS)
    def lives(steps: list[tuple[object, ...]]) -> None:
        folder = tmp_path_factory.mktemp("forgotten")
        memory = FailingMemory(checkpoint_rows=2)

        def store() -> FailingMemory | FailingSqlite:
            return memory if kind == "memory" else FailingSqlite(folder, checkpoint_rows=2)

        async def work() -> None:
            used = store()
            broker = await Broker.open(used, LIMITS)
            broker.subscribe("always", "kept")
            await broker.commit()
            last: dict[str, int] = {}
            counters = count_from(1)
            for step in steps:
                match step:
                    case "live", int() as number, int() as count:
                        name = f"t/{number}"
                        broker.subscribe("c", name)
                        broker.publish("kept", b"beside it, in the same block")
                        for _ in range(count):
                            offset = broker.publish_once(name, b"", "p", next(counters))
                            assert offset > last.get(name, 0)
                            last[name] = offset
                        await broker.commit()
                        broker.unsubscribe("c", name)
                        await broker.commit()
                    case ("collect",):
                        await broker.collector.collect()
                    case ("sweep",):
                        await used.sweep()
                    case ("fail",):
                        used.fails = True
                        broker.subscribe("c", "t/new")
                        with pytest.raises(StoreFull):
                            await broker.commit()
                        used.fails = False
                    case _:
                        if step == ("stop",):
                            await broker.close()
                        else:
                            used.crash()
                        if kind == "sqlite":
                            assert_sound(folder)
                        used = store()
                        broker = await Broker.open(used, LIMITS)
                assert len(broker.topics) <= 2 * LIMITS.max_topics
                assert broker.registry.producers == sum(
                    len(t.producers or ()) for t in broker.topics.values()
                )
            broker.unsubscribe("always", "kept")
            await broker.commit()
            for _ in range(4):
                await broker.collector.collect()
                broker.commits.checkpoint_wanted = True
                await broker.commit()
            await broker.close()
            if kind == "sqlite":
                assert_sound(folder)
                with closing(sqlite3.connect(folder / "stafeta.db")) as database:
                    assert database.execute("SELECT count(*) FROM block").fetchone() == (0,)
                    assert database.execute("SELECT count(*) FROM page").fetchone() == (0,)

        run(work())

    lives()


def test_only_topics_that_exist_count(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path), LIMITS)
        for number in range(100):
            broker.subscribe("c", f"t/{number}")
            await broker.commit()
            broker.unsubscribe("c", f"t/{number}")
        for number in range(3):
            broker.subscribe("c", f"u/{number}")
        with pytest.raises(LimitReached, match="There are 3 topics"):
            broker.subscribe("c", "u/4")
        await broker.commit()
        await broker.close()

    run(work())
