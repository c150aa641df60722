"""The benchmarks run, and what they print and write is what they have measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rendering
from benchmarks.__main__ import BENCHMARKS
from benchmarks.percentiles import percentile
from benchmarks.results import Bar, Column, Result, Row, Table, Value, from_plain, to_plain

ROOT = Path(__file__).parent.parent
MACHINE: dict[str, Value] = {
    "cpus": 2,
    "processor": "abacus",
    "memory_gb": 8.0,
    "system": "Linux 6",
    "python": "3.11",
    "stafeta": "0.1",
    "libzmq": "4",
    "sqlite": "3",
    "filesystem": "ext4",
    "fdatasync_p50_ms": 0.5,
    "fdatasync_p99_ms": 5.0,
}
TABLE = Table(
    "Cost of a cake",
    "The best of two.",
    (Column("cake", "cake"), Column("minutes", "minutes", 1), Column("slices", "slices")),
    (
        Row({"cake": "apple", "minutes": 61.25, "slices": 12}, (Bar("minutes", "<", 60, " min"),)),
        Row({"cake": "plum", "minutes": 45.0, "slices": None}, (Bar("minutes", "<", 60, " min"),)),
    ),
)
RESULT = Result("2025-01-01T00:00:00+00:00", False, MACHINE, (TABLE,))


def test_the_quick_benchmark_of_put_writes_its_figures(tmp_path: Path) -> None:
    done = benchmarks("--quick", "put", "--json", str(tmp_path / "figures"), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "≥ 40,000/s" in done.stdout
    plain = json.loads((tmp_path / "figures").read_text())
    (table,) = plain["put"]["tables"]
    assert [row["values"]["window"] for row in table["rows"] if row["bars"]] == [1000, 5000]
    assert all(
        0 < row["values"]["p50_ms"] <= row["values"]["p99_ms"] and row["values"]["rate"] > 0
        for row in table["rows"]
    )
    assert plain["put"]["machine"].keys() == MACHINE.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_every_benchmark_has_its_place_in_the_documentation() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rendering.check_places(page, [*BENCHMARKS, "bars"])
    assert all(f"\n## {name}\n" in page for name in BENCHMARKS)


def test_figures_are_written_between_their_markers_again_and_again() -> None:
    page = "".join(
        f"before\n<!-- measured: {name} -->\nold\n<!-- end -->\nafter\n" for name in ("bars", "put")
    )
    written = rendering.page(page, {"put": RESULT})
    assert "old" not in written
    assert written.count("before\n") == written.count("after\n") == 2
    assert "| apple | 61.2 | 12 | < 60 min: missed: 1.02 of it |" in written
    assert "| put | Cost of a cake: cake plum | < 60 min | 45.0 min | met |" in written
    assert rendering.page(written, {"put": RESULT}) == written
    with pytest.raises(rendering.NoPlace, match="measured: get"):
        rendering.page(page, {"get": RESULT})


def test_a_table_is_printed_with_its_bars_and_its_machine() -> None:
    printed = rendering.text("cakes", RESULT).splitlines()
    assert printed[2:6] == [
        "cake   minutes  slices  bar",
        "-----  -------  ------  ----------------------------",
        "apple     61.2      12  < 60 min: missed: 1.02 of it",
        "plum      45.0       -  < 60 min: met",
    ]
    assert "fdatasync 0.50 ms (p99 5.00 ms)" in rendering.text("cakes", RESULT)


def test_a_result_is_the_same_after_json() -> None:
    assert from_plain(json.loads(json.dumps(to_plain(RESULT)))) == RESULT


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 100))
def test_a_percentile_is_the_least_that_so_many_do_not_exceed(figures: list[float], percent: float) -> None:
    figures.sort()
    found = percentile(figures, percent)
    needed = len(figures) * percent / 100
    assert sum(figure <= found for figure in figures) >= needed
    assert found == figures[0] or sum(figure < found for figure in figures) < needed


def benchmarks(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
