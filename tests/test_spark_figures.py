"""What the benchmarks of Spark measure memory with, and the picture that they draw."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import spark_plot
from benchmarks.load import LoadFailed
from benchmarks.results import Column, Result, Row, Table
from benchmarks.setting import Setting
from benchmarks.spark_memory import Watch, below, one
from benchmarks.spark_rounds import take_turns
from benchmarks.spark_topic import expect
from tests.waiting import wait_until

MEGABYTES = 64


def test_rows_that_are_missing_fail_the_benchmark() -> None:
    expect(5, 5, "the topic")
    with pytest.raises(LoadFailed, match="the topic: 4 rows instead of 5"):
        expect(5, 4, "the topic")


def test_what_a_process_had_for_a_moment_is_seen() -> None:
    taking = f"input(); taken = b'x' * ({MEGABYTES} << 20); print('taken', flush=True); input(); del taken; input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", taking], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with Watch({"it": one(process.pid)}) as watch:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "taken\n"
            wait_until(lambda: watch.highest["it"] >= watch.before["it"] + MEGABYTES * 0.9)
        process.communicate("\n\n")
    assert watch.highest["it"] > watch.before["it"]


def test_of_several_processes_the_largest_counts_and_those_that_end_are_passed_over() -> None:
    family = (
        "import subprocess, sys\n"
        f"kin = [subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE) for code in {programs()!r}]\n"
        "input()\n"
        "for one in kin: one.communicate(b'\\n')\n"
    )
    with (
        subprocess.Popen([sys.executable, "-c", family], stdin=subprocess.PIPE) as parent,
        Watch({"children": below(parent.pid)}) as watch,
    ):
        wait_until(lambda: watch.highest["children"] >= MEGABYTES)
        parent.communicate(b"\n")
    assert MEGABYTES <= watch.highest["children"] < 2 * MEGABYTES


@pytest.mark.parametrize(("quick", "turns"), [(True, "ab"), (False, "abababab")])
def test_ways_take_turns_and_the_first_round_does_not_count(quick: bool, turns: str, tmp_path: Path) -> None:
    done: list[str] = []

    def work(name: str) -> int:
        done.append(name)
        return len(done)

    measures = take_turns(Setting("cakes", tmp_path, quick), {"a": lambda: work("a"), "b": lambda: work("b")})
    assert "".join(done) == turns
    assert measures == ({"a": [1], "b": [2]} if quick else {"a": [3, 5, 7], "b": [4, 6, 8]})


def test_the_same_rates_are_drawn_the_same(tmp_path: Path) -> None:
    rows = tuple(Row({"tasks": t, "size": s, "rate": t * s * 1.0}) for t in (1, 16) for s in (1_000, 30_000))
    table = Table("Eating", "", (Column("tasks", "tasks"),), rows, labels=2)
    results = {"spark_tasks": Result("2025-01-01", False, {}, (table,))}
    for name in ("one", "two"):
        spark_plot.draw(results, tmp_path / name)
    picture = (tmp_path / "one").read_text(encoding="utf-8")
    assert picture == (tmp_path / "two").read_text(encoding="utf-8")
    for word in ("Eating", "30,000", "tasks", "rows/s"):
        assert word in picture


def test_nothing_is_drawn_where_tasks_were_not_measured(tmp_path: Path) -> None:
    spark_plot.draw({}, tmp_path / "picture")
    assert list(tmp_path.iterdir()) == []


def programs() -> list[str]:
    """A small and a large one, which hold what they have until they are told to end."""
    return [f"x = b'x' * ({size} << 20); input()" for size in (1, MEGABYTES)]
