"""What the benchmarks of peers have measured, as one picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peer import FSYNCED
from benchmarks.picture import DISK, OURS, SMALL, THEIRS, TITLE, picture
from benchmarks.results import Result, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT, _ROW = 0.8, 0.24  # inches: of a panel without rows, of a row


class Line(NamedTuple):
    label: str
    colour: str
    solid: bool  # what it acknowledges is on disk
    figure: float
    mark: float | None = None  # a second figure

    @property
    def said(self) -> str:
        return " · ".join(_number(each) for each in (self.figure, self.mark) if each is not None)


class Panel(NamedTuple):
    title: str
    unit: str
    lines: list[Line]


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Writes an SVG; nothing, where none of them was measured."""
    panels = [panel for panel in _panels(results) if panel.lines]
    if not panels:
        return
    heights = [_HEIGHT + _ROW * len(panel.lines) for panel in panels]
    quick = any(result.quick for result in results.values())
    with picture(path, sum(heights), quick=quick) as figure:
        every = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(every, panels, strict=True):
            _draw(axes, panel)


def _panels(results: Mapping[str, Result]) -> list[Panel]:
    panels = []
    for name, result in results.items():
        for table in result.tables:
            match name:
                case "peer_publish" | "peer_consume":
                    lines = [_line(row, "rate") for row in table.rows if row.values["rate"] is not None]
                    panels.append(Panel(table.title, "messages/s", lines))
                case "peer_latency":
                    lines = [_line(row, "p50", "p99") for row in table.rows if row.values["p50"] is not None]
                    panels.append(Panel(table.title, "ms, p50 and as a line p99", lines))
    return panels


def _line(row: Row, key: str, mark: str | None = None) -> Line:
    values = row.values
    system, figure, second = values["system"], values[key], values[mark] if mark else None
    assert isinstance(figure, int | float)
    assert not isinstance(second, str)
    colour = {"Stafeta": OURS, "the disk alone": DISK}.get(str(system), THEIRS)
    return Line(f"{system}: {values['how']}", colour, values["promise"] == FSYNCED, figure, second)


def _draw(axes: "Axes", panel: Panel) -> None:
    for place, line in enumerate(panel.lines):
        face = line.colour if line.solid else "none"
        axes.barh(place, line.figure, height=0.66, color=face, edgecolor=line.colour, linewidth=0.8)
        if line.mark is not None:
            axes.plot([line.figure, line.mark], [place, place], color=line.colour, linewidth=1.5)
        end = (max(line.figure, line.mark or 0), place)
        axes.annotate(line.said, end, xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(panel.lines)), [line.label for line in panel.lines])
    axes.invert_yaxis()
    axes.set_xlim(
        0, 1.18 * max(max(line.figure, line.mark or 0) for line in panel.lines)
    )  # room for the figures
    axes.set_xticks([])
    axes.set_title(panel.title, loc="left", fontsize=TITLE)
    axes.set_xlabel(f"{panel.unit}; filled: what is acknowledged is on disk", loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"
