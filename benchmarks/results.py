"""What a benchmark has measured: tables of figures, some with a bar that they have to pass."""

from typing import Any, Literal, NamedTuple, TypeAlias

Value: TypeAlias = str | float | None
Relation: TypeAlias = Literal["≥", "≤", "<"]


class Column(NamedTuple):
    key: str
    heading: str
    digits: int = 0  # after the point


class Bar(NamedTuple):
    """What the figure in a column of a row has to be."""

    column: str
    relation: Relation
    limit: float
    unit: str

    def met(self, figure: float) -> bool:
        match self.relation:
            case "≥":
                return figure >= self.limit
            case "≤":
                return figure <= self.limit
            case "<":
                return figure < self.limit

    def __str__(self) -> str:
        return f"{self.relation} {self.limit:,.10g}{self.unit}"


class Row(NamedTuple):
    values: dict[str, Value]
    bars: tuple[Bar, ...] = ()

    def figure(self, bar: Bar) -> float:
        figure = self.values[bar.column]
        assert isinstance(figure, int | float), f"a bar needs a figure, not {figure!r}"
        return figure


class Table(NamedTuple):
    title: str
    note: str  # how the figures were chosen among several rounds, and what is beside them
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    labels: int = 1  # how many of the first columns say what a row is about


class Result(NamedTuple):
    """One benchmark, measured once."""

    measured: str  # when, in ISO 8601
    quick: bool  # too small to say anything
    machine: dict[str, Value]
    tables: tuple[Table, ...]


def to_plain(result: Result) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "measured": result.measured,
        "quick": result.quick,
        "machine": result.machine,
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "labels": table.labels,
                "columns": [column._asdict() for column in table.columns],
                "rows": [
                    {
                        "values": row.values,
                        "bars": [bar._asdict() | {"met": bar.met(row.figure(bar))} for bar in row.bars],
                    }
                    for row in table.rows
                ],
            }
            for table in result.tables
        ],
    }


def from_plain(plain: dict[str, Any]) -> Result:
    """What `to_plain` has made of it."""
    return Result(
        plain["measured"],
        plain["quick"],
        plain["machine"],
        tuple(
            Table(
                table["title"],
                table["note"],
                tuple(Column(**column) for column in table["columns"]),
                tuple(_row(row) for row in table["rows"]),
                table["labels"],
            )
            for table in plain["tables"]
        ),
    )


def _row(plain: dict[str, Any]) -> Row:
    bars = tuple(Bar(**{name: bar[name] for name in Bar._fields}) for bar in plain["bars"])
    return Row(plain["values"], bars)
