"""A picture of what was measured: an SVG, the same for the same figures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, THEIRS, DISK = "#1f6f8b", "#8a8d91", "#d0b36b"
WIDTH = 8.6  # inches
TITLE, SMALL = 9.0, 7.5  # sizes of letters that are not as all others
_HEIGHT, _ROW = 0.8, 0.24  # inches: of a panel without rows, of a row


@contextmanager
def picture(path: Path, height: float, *, quick: bool) -> Iterator["Figure"]:
    """A figure to draw in, so many inches high, which is written afterwards."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "stafeta", "svg.fonttype": "none", "font.size": 8.5}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure
        if quick:
            figure.suptitle("Measured with --quick, which says nothing", fontsize=8.5)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


class Line(NamedTuple):
    """A bar."""

    label: str
    colour: str
    figure: float
    mark: float | None = None  # a second figure
    solid: bool = True

    @property
    def said(self) -> str:
        return " · ".join(_number(each) for each in (self.figure, self.mark) if each is not None)


class Panel(NamedTuple):
    """Bars below each other."""

    title: str
    unit: str
    lines: list[Line]


def draw_panels(panels: Sequence[Panel], path: Path, *, quick: bool) -> None:
    """Writes an SVG of those that have lines; nothing, where none has."""
    drawn = [panel for panel in panels if panel.lines]
    if not drawn:
        return
    heights = [_HEIGHT + _ROW * len(panel.lines) for panel in drawn]
    with picture(path, sum(heights), quick=quick) as figure:
        every = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(every, drawn, strict=True):
            _draw(axes, panel)


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
    axes.set_xlabel(panel.unit, loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"
