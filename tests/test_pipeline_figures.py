"""What the benchmarks of the pipeline make of what they have seen, and the picture that they draw."""

import os
from pathlib import Path

import psutil
import pytest

from benchmarks import pipeline_plot
from benchmarks.load import LoadFailed
from benchmarks.pipeline_archive import OURS, THEIRS, rate_rows
from benchmarks.pipeline_latency import ages_of
from benchmarks.pipeline_load import Arrived, Sent, name
from benchmarks.pipeline_rounds import PASSES, Cpu, Measured, processor_time
from benchmarks.results import Column, Result, Row, Table
from benchmarks.setting import Setting

SENT = Sent(
    begin=100.25, rate=4, topics=2, total=16
)  # of two topics, from 100.25 to 104 with both at its beginning


def window(topic: int, start: float, came: float, readings: int = 2) -> Arrived:
    return Arrived(name(topic), start, start + 1, readings, came)


def test_ages_are_those_of_windows_that_began_and_ended_while_it_was_measured() -> None:
    arrived = [
        window(topic, start, start + 3) for topic in (0, 1) for start in (100.0, 101.0, 102.0, 103.0, 104.0)
    ]
    ages = ages_of(SENT, arrived, skipped=0.0)
    assert ages.of_windows == [2.0] * 6
    assert ages.of_readings == [2.25, 2.25, 2.25, 2.5, 2.5, 2.5, 2.75, 2.75, 2.75, 3.0, 3.0, 3.0]
    assert ages.uncounted == 0


def test_readings_that_no_window_counts_are_told() -> None:
    arrived = [window(0, 101.0, 103.0), window(1, 101.0, 104.0, readings=1), window(0, 102.0, 104.0)]
    ages = ages_of(SENT, arrived, skipped=0.0)
    assert ages.of_windows == [1.0, 1.0, 2.0]
    assert ages.uncounted == 1 + 2 + 4
    with pytest.raises(LoadFailed, match="No rollup"):
        ages_of(SENT, [], skipped=0.0)


def test_rates_are_beside_those_of_spark_in_the_same_pass() -> None:
    cpu = Cpu(1.0, 2.0, 3.0)
    measured = {
        OURS: {"cold": Measured(10.0, cpu), "warm": Measured(4.0, cpu)},
        THEIRS: {"cold": Measured(5.0, cpu), "warm": Measured(1.0, cpu)},
    }
    rows = rate_rows(measured, 2_000_000, OURS, {"cold": 300_000, "warm": 500_000})
    assert [row.values["rate"] for row in rows] == [200_000, 500_000, 400_000, 2_000_000]
    assert [row.values["ratio"] for row in rows] == [0.5, 0.25, None, None]
    assert [row.values["python"] for row in rows] == [1.5] * 4
    assert [[bar.met(row.figure(bar)) for bar in row.bars] for row in rows] == [[False], [True], [], []]


def test_the_time_of_a_processor_that_works_goes_on() -> None:
    process = psutil.Process(os.getpid())
    before = processor_time(process)
    while processor_time(process) <= before:
        sum(range(10_000))


def test_as_many_rows_as_were_said_are_measured(tmp_path: Path) -> None:
    assert Setting("cakes", tmp_path, quick=False).rows(10, 1) == 10
    assert Setting("cakes", tmp_path, quick=True).rows(10, 1) == 1
    assert Setting("cakes", tmp_path, quick=True, total=5).rows(10, 1) == 5


def test_the_same_figures_are_drawn_the_same(tmp_path: Path) -> None:
    rates = tuple(
        Row({"what": what, "pass": each, "rate": 1000.0}) for what in (OURS, THEIRS) for each in PASSES
    )
    ages = (Row({"trigger": "1s", "delay": "10s", "window50": 1.5, "window95": 2.5}),)
    results = {
        "pipeline_archive": _result("Archiving", rates),
        "pipeline_latency": _result("Waiting", ages),
        "put": _result("Eating", ()),
    }
    for file in ("one", "two"):
        pipeline_plot.draw(results, tmp_path / file)
    picture = (tmp_path / "one").read_text(encoding="utf-8")
    assert picture == (tmp_path / "two").read_text(encoding="utf-8")
    for word in ("Archiving", f"{OURS}, cold", "Waiting", "trigger 1s, delay 10s", "1.50 · 2.50"):
        assert word in picture
    assert "Eating" not in picture


def test_nothing_is_drawn_where_nothing_was_measured(tmp_path: Path) -> None:
    pipeline_plot.draw({}, tmp_path / "picture")
    assert list(tmp_path.iterdir()) == []


def _result(title: str, rows: tuple[Row, ...]) -> Result:
    return Result("2025-01-01", False, {}, (Table(title, "", (Column("what", "what"),), rows),))
