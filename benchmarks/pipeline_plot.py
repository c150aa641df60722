"""What the benchmarks of the pipeline have measured, as one picture."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks import pipeline_archive, pipeline_rollup, pipeline_sql
from benchmarks.picture import OURS, THEIRS, Line, Panel, draw_panels
from benchmarks.results import Result, Row

_OURS = {pipeline_archive.OURS, pipeline_rollup.OURS, pipeline_sql.OURS}
_LABELS = {
    "pipeline_archive": ("what", "pass"),
    "pipeline_rollup": ("what", "pass"),
    "pipeline_sql": ("from", "what"),
    "pipeline_latency": ("trigger", "delay"),
}


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Writes an SVG; nothing, where none of them was measured."""
    measured = {name: result for name, result in results.items() if name in _LABELS}
    panels = [_panel(name, result) for name, result in measured.items()]
    draw_panels(panels, path, quick=any(result.quick for result in measured.values()))


def _panel(name: str, result: Result) -> Panel:
    table, *_ = result.tables  # of two, the first is drawn
    if name == "pipeline_latency":
        lines = [_line(name, row, "window50", "window95") for row in table.rows]
        return Panel(table.title, "s from the end of the window, p50 and as a line p95", lines)
    return Panel(table.title, "rows/s", [_line(name, row, "rate") for row in table.rows])


def _line(name: str, row: Row, key: str, mark: str | None = None) -> Line:
    figure, second = row.values[key], row.values[mark] if mark else None
    assert isinstance(figure, int | float)
    assert not isinstance(second, str)
    first, then = (str(row.values[label]) for label in _LABELS[name])
    label = f"trigger {first}, delay {then}" if name == "pipeline_latency" else f"{first}, {then}"
    colour = OURS if mark or first in _OURS else THEIRS
    return Line(label, colour, figure, second)
