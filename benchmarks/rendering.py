"""Results as people read them: in a terminal, and between the markers of a page."""

import re
import textwrap
from collections.abc import Iterable, Mapping

from benchmarks.results import Bar, Result, Row, Table, Value
from stafeta import text_tables

_END = "<!-- end -->"
_PLACE = re.compile(r"^<!-- measured: (\w+) -->$", re.MULTILINE)


class NoPlace(Exception):
    """The page has no markers for a result."""


def text(name: str, result: Result) -> str:
    """A benchmark's tables for a terminal."""
    parts = []
    for table in result.tables:
        headings, *rows = _cells(table)
        sides = "".join("<>"[right] for right in _numeric(table))
        rules = ["-" * max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = text_tables.lines([headings, rules, *rows], sides)
        parts.append("\n".join([f"{name}: {table.title}", "", *lines, "", _wrapped(table.note)]))
    return "\n\n".join([*parts, _wrapped(_machine(result))])


def page(markdown: str, results: Mapping[str, Result]) -> str:
    """The page, or several in a row, with the results between their markers: `measured: put`, …, and `measured: bars`
    for all bars.

    The bars of what was not measured now stay as they are.
    """
    sections = {name: _section(result) for name, result in results.items()}
    sections["bars"] = _bars(results, _kept_bars(markdown))
    check_places(markdown, sections)
    for name, section in sections.items():
        before, after = markdown.split(_begin(name), 1)
        markdown = f"{before}{_begin(name)}\n{section}\n\n{_END}{after.partition(_END)[2]}"
    return markdown


def check_places(markdown: str, names: Iterable[str]) -> None:
    """Raises `NoPlace` where the page has no markers for one of these."""
    for name in names:
        if _END not in markdown.partition(_begin(name))[2]:
            raise NoPlace(f"The page needs a line '{_begin(name).strip()}' and below it one '{_END}'.")


def places(markdown: str) -> list[str]:
    """What the page has markers for."""
    return _PLACE.findall(markdown)


def _begin(name: str) -> str:
    return f"<!-- measured: {name} -->\n"


def _section(result: Result) -> str:
    parts = [
        f"**{table.title}**\n\n{_markdown(_cells(table), _numeric(table))}\n\n{_wrapped(table.note)}"
        for table in result.tables
    ]
    return "\n\n".join([*parts, _wrapped(_machine(result))])


def _bars(results: Mapping[str, Result], kept: Mapping[str, list[list[str]]]) -> str:
    lines = [["benchmark", "what", "bar", "measured", ""]]
    for name in dict.fromkeys([*kept, *results]):
        if name not in results:
            lines += kept[name]
            continue
        lines += [
            [name, _label(table, row), str(bar), _measured(table, row, bar), _met(row, bar)]
            for table in results[name].tables
            for row in table.rows
            for bar in row.bars
        ]
    return _markdown(lines, [False, False, True, True, False])


def _kept_bars(markdown: str) -> dict[str, list[list[str]]]:
    """The cells of the lines that the page has for each benchmark; those without any are there, in their order."""
    kept: dict[str, list[list[str]]] = {name: [] for name in places(markdown) if name != "bars"}
    for line in markdown.partition(_begin("bars"))[2].partition(_END)[0].splitlines():
        cells = line[2:-2].split(" | ")
        if cells[0] in kept:
            kept[cells[0]].append(cells)
    return kept


def _label(table: Table, row: Row) -> str:
    about = (
        f"{column.heading} {_cell(row.values[column.key], 0)}" for column in table.columns[: table.labels]
    )
    return f"{table.title}: {', '.join(about)}"


def _measured(table: Table, row: Row, bar: Bar) -> str:
    digits = next(column.digits for column in table.columns if column.key == bar.column)
    return _cell(row.figure(bar), digits) + bar.unit


def _met(row: Row, bar: Bar) -> str:
    return "met" if bar.met(row.figure(bar)) else f"missed: {row.figure(bar) / bar.limit:.2f} of it"


def _machine(result: Result) -> str:
    machine = result.machine
    return (
        f"Measured on {result.measured[:10]}{' with --quick, which says nothing' if result.quick else ''}: "
        f"{machine['cpus']} CPUs ({machine['processor']}), {machine['memory_gb']:.0f} GB, {machine['system']}, "
        f"{machine['filesystem']}, fdatasync {machine['fdatasync_p50_ms']:.2f} ms "
        f"(p99 {machine['fdatasync_p99_ms']:.2f} ms); Stafeta {machine['stafeta']}, Python {machine['python']}, "
        f"libzmq {machine['libzmq']}, SQLite {machine['sqlite']}."
    )


def _cells(table: Table) -> list[list[str]]:
    """The headings, then the rows; with a column for bars where there are any."""
    lines = [[column.heading for column in table.columns]]
    lines += [
        [_cell(row.values[column.key], column.digits) for column in table.columns] for row in table.rows
    ]
    if any(row.bars for row in table.rows):
        lines[0].append("bar")
        for line, row in zip(lines[1:], table.rows, strict=True):
            line.append("; ".join(f"{bar}: {_met(row, bar)}" for bar in row.bars))
    return lines


def _numeric(table: Table) -> list[bool]:
    """Which of the columns in `_cells` are of figures."""
    numeric = [not isinstance(table.rows[0].values[column.key], str) for column in table.columns]
    return [*numeric, False] if any(row.bars for row in table.rows) else numeric


def _cell(value: Value, digits: int) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def _wrapped(sentences: str) -> str:
    return textwrap.fill(sentences, 120, break_on_hyphens=False)


def _markdown(lines: Iterable[list[str]], numeric: list[bool]) -> str:
    headings, *rows = ["| " + " | ".join(line) + " |" for line in lines]
    rule = "|" + "|".join("---:" if right else "---" for right in numeric) + "|"
    return "\n".join([headings, rule, *rows])
