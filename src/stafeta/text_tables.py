"""Tables on a terminal."""

from collections.abc import Sequence


def lines(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """A line for each row, its columns as wide as their widest cell, each aligned to its side: `<` or `>`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
