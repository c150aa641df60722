"""What `spark_tasks` has measured, as a picture: rows a second by number of tasks, and by size of the batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.picture import OURS, SMALL, TITLE, picture
from benchmarks.results import Result, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 3.2  # inches
_NAMES = {"tasks": "tasks", "size": "rows in a batch (batchRows)"}

Rates = dict[tuple[float, float], float]


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Writes the SVG; nothing, where it was not measured."""
    result = results.get("spark_tasks")
    if result is None:
        return
    (table,) = result.tables
    rates: Rates = {}
    for row in table.rows:
        tasks, size, rate = (row.values[key] for key in ("tasks", "size", "rate"))
        rates[_figure(tasks), _figure(size)] = _figure(rate)
    with picture(path, _HEIGHT, quick=result.quick) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(left, rates, "tasks", "size")
        _draw(right, {(size, tasks): rate for (tasks, size), rate in rates.items()}, "size", "tasks")
        left.set_title(table.title, loc="left", fontsize=TITLE)
        left.set_ylabel("rows/s")


def _figure(value: Value) -> float:
    assert isinstance(value, int | float), f"this can only be drawn as a figure: {value!r}"
    return value


def _draw(axes: "Axes", rates: Rates, across: str, each: str) -> None:
    """A line for each of the second of two keys, the darker the larger, all named beside them."""
    places, lines = (sorted({key[part] for key in rates}) for part in (0, 1))
    for number, line in enumerate(lines):
        heights = [rates[place, line] for place in places]
        shade = 0.3 + 0.7 * (number + 1) / len(lines)
        axes.plot(
            places,
            heights,
            color=OURS,
            alpha=shade,
            linewidth=1.5,
            marker="o",
            markersize=3,
            label=f"{line:,.0f}",
        )
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.minorticks_off()
    axes.set_ylim(0, 1.1 * max(rates.values()))
    axes.yaxis.set_major_formatter(lambda height, _: f"{height:,.0f}")
    axes.set_xlabel(_NAMES[across], loc="left")
    axes.legend(
        title=_NAMES[each], fontsize=SMALL, title_fontsize=SMALL, frameon=False, ncols=2, loc="lower right"
    )
    axes.spines[["top", "right"]].set_visible(False)
