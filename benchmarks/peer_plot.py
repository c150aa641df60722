"""What the benchmarks of peers have measured, as one picture."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peer import FSYNCED
from benchmarks.picture import DISK, OURS, THEIRS, Line, Panel, draw_panels
from benchmarks.results import Result, Row

_FILLED = "filled: what is acknowledged is on disk"


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Writes an SVG; nothing, where none of them was measured."""
    quick = any(result.quick for result in results.values())
    draw_panels(_panels(results), path, quick=quick)


def _panels(results: Mapping[str, Result]) -> list[Panel]:
    panels = []
    for name, result in results.items():
        for table in result.tables:
            match name:
                case "peer_publish" | "peer_consume":
                    lines = [_line(row, "rate") for row in table.rows if row.values["rate"] is not None]
                    panels.append(Panel(table.title, f"messages/s; {_FILLED}", lines))
                case "peer_latency":
                    lines = [_line(row, "p50", "p99") for row in table.rows if row.values["p50"] is not None]
                    panels.append(Panel(table.title, f"ms, p50 and as a line p99; {_FILLED}", lines))
    return panels


def _line(row: Row, key: str, mark: str | None = None) -> Line:
    values = row.values
    system, figure, second = values["system"], values[key], values[mark] if mark else None
    assert isinstance(figure, int | float)
    assert not isinstance(second, str)
    colour = {"Stafeta": OURS, "the disk alone": DISK}.get(str(system), THEIRS)
    return Line(f"{system}: {values['how']}", colour, figure, second, solid=values["promise"] == FSYNCED)
