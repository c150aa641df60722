"""A picture of what was measured: an SVG, the same for the same figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, THEIRS, DISK = "#1f6f8b", "#8a8d91", "#d0b36b"
WIDTH = 8.6  # inches
TITLE, SMALL = 9.0, 7.5  # sizes of letters that are not as all others


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
