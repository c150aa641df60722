"""Whatever a broker does while it is backed up, and wherever backups are killed: each point that is there is whole."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stafeta.backup import points, taking
from tests.backup.lives import TOPICS, Life
from tests.broker.stores import run, shrink

topics = st.sampled_from(TOPICS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(topics, min_size=1, max_size=6)),
        st.tuples(st.just("append"), st.lists(topics, min_size=1, max_size=6)),
        st.tuples(st.just("release"), topics, st.integers(1, 5)),
        st.tuples(st.sampled_from(["sweep", "sweep", "checkpoint", "crash", "backup"])),
        st.tuples(st.just("killed"), st.integers(0, 20)),
        st.tuples(st.just("keep"), st.integers(1, 2)),
        st.tuples(st.just("restore"), st.integers(0, 3)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("large", [0, 500], ids=["small", "in segments"])
def test_each_point_holds_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    shrink(monkeypatch, 2)
    monkeypatch.setattr(taking, "PACK", 700)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # nothing loses power here

    @given(steps)
    @settings(max_examples=settings().max_examples // 4)
    def live(taken: list[tuple[object, ...]]) -> None:
        async def work() -> None:
            life = Life(tmp_path_factory.mktemp("life"), large=large)
            await life.begin()
            for step in taken:
                await life.do(step)
            life.back_up()
            life.store.crash()
            await life.check_points()

        run(work())

    live()


def test_blocks_of_a_log_that_was_set_back_are_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore their numbers are used again."""
    monkeypatch.setattr(taking, "PACK", 700)

    async def work() -> None:
        life = Life(tmp_path)
        await life.begin()
        for _ in range(10):
            await life.append([1, 2])
        life.back_up()
        for _ in range(10):
            await life.append([1, 2])
        life.back_up()
        before, _ = points.all_points(life.destination)
        await life.restore(before[0].name)
        for _ in range(10):
            await life.append([3, 3])
        life.back_up()
        *_, last = points.all_points(life.destination)[0]
        files = [{pack.file.name for pack in point.packs} for point in (*before, last)]
        assert files[0] <= files[2]  # what was there before is not copied again
        assert files[1] - files[0]
        assert not files[2] & (files[1] - files[0])
        life.store.crash()
        await life.check_points()

    run(work())
