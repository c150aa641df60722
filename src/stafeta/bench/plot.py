"""A picture of a run: deliveries over time, and how many messages were how late."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stafeta.bench.delivery_stats import SLOT
from stafeta.bench.results import Report, latency_ms
from stafeta.bench.table import settings
from stafeta.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS: Final = (".png", ".svg")

_POINTS: Final = 100  # the most that deliveries over time are drawn with
_NINES: Final = 3  # the percentiles end at 99.9
_STEPS: Final = 100  # points of a line from one nine to the next
_DELIVERED, _ACKNOWLEDGED, _GRID = "#1f6fb4", "#d9762b", "#dddddd"


def check(path: Path) -> None:
    """Raises `ConfigError` where no picture can be drawn there: better before a run than after it."""
    from importlib.util import find_spec

    if path.suffix.lower() not in FORMS:
        raise ConfigError(f"--plot draws a .png or a .svg; {path.name!r} is neither.")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.parent}.")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is missing: pip install 'stafeta[plot]'.")


def draw(report: Report, path: Path) -> None:
    """Draws it into a file, whose ending says as what."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "axes.titlesize": 10,
        "grid.color": _GRID,
        "grid.linewidth": 0.6,
        "svg.hashsalt": "stafeta",  # the same run is the same file
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 4), layout="constrained")
        figure.suptitle(settings(report.plan), fontsize=10, x=0.01, ha="left", color="#555555")
        over_time, latencies = figure.subplots(1, 2)
        _draw_deliveries(over_time, report)
        _draw_latencies(latencies, report)
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}.") from None


def _draw_deliveries(axes: "Axes", report: Report) -> None:
    from matplotlib.ticker import EngFormatter

    # The last slot is not a whole one; what is in it would look like a fall.
    slots = report.timeline[:-1] or report.timeline
    width = -(-len(slots) // _POINTS)
    seconds = width * SLOT / 1e9
    rates = [sum(slots[at : at + width]) / seconds for at in range(0, len(slots) - width + 1, width)]
    axes.stairs(
        rates, [number * seconds for number in range(len(rates) + 1)], color=_DELIVERED, linewidth=1.5
    )
    axes.stairs(
        rates, [number * seconds for number in range(len(rates) + 1)], color=_DELIVERED, alpha=0.12, fill=True
    )
    axes.set_title(f"Delivered: {report.delivered.rate:,.0f} a second")
    axes.set_xlabel("seconds")
    axes.set_ylabel("messages/s")
    axes.set_xlim(0)
    axes.set_ylim(0, max(rates, default=0) * 1.1 or 1)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y")


def _draw_latencies(axes: "Axes", report: Report) -> None:
    """Percentiles on a scale on which each further nine takes the same room, as the tail is what matters."""
    from matplotlib.ticker import LogLocator, NullLocator

    nines = [step / _STEPS for step in range(_NINES * _STEPS + 1)]
    percents = [100 * (1 - 10**-each) for each in nines]
    lines = (
        ("acknowledged", report.acknowledgement, _ACKNOWLEDGED),
        ("delivered", report.delivery, _DELIVERED),
    )
    drawn: list[float] = []
    for label, histogram, color in lines:
        found = latency_ms(histogram)
        if histogram is None or found is None:
            continue
        milliseconds = [value / 1e6 for value in histogram.percentiles(percents)]
        name = f"{label}: p50 {found['p50']:,.2f}, p99 {found['p99']:,.2f}, max {found['max']:,.2f} ms"
        axes.plot(nines, milliseconds, color=color, linewidth=1.5, label=name)
        drawn += milliseconds
    axes.set_title("Latency")
    axes.set_xlabel("percent of the messages")
    axes.set_ylabel("ms")
    axes.set_yscale("log")
    axes.set_xlim(0, _NINES)
    axes.set_xticks([0, math.log10(2), 1, 2, 3], ["0", "50", "90", "99", "99.9"])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid()
    if drawn:
        span = max(drawn) / min(drawn) * 1.5
        axes.set_ylim(min(drawn) / span**0.05, max(drawn) * span**0.3)  # with room for the legend
        axes.legend(loc="upper left", frameon=False)
