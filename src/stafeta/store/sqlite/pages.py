"""Runs of one topic as an array of numbers, and as pages of the index: up to 16 of them in one row of the database.

Six numbers a run: base, rows, block, row, time, size. In memory and on disk they are the same bytes.
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TypeAlias

from stafeta.store.blocks import Run, RunHead
from stafeta.store.sqlite.seals import Row, opened

WIDTH = len(Run._fields) - 1
RUNS = 16  # of a page: as many as fit a row that SQLite keeps in one piece
PAGE = RUNS * WIDTH
_PACKED = Struct(f"={WIDTH}q")

Runs: TypeAlias = "array[int]"
PageRow: TypeAlias = tuple[int, int, int, int, bytes]  # topic, base, end, last block, runs


def append(known: dict[int, Runs], runs: Iterable[Run]) -> int:
    """Add runs to those of their topics; returns how many rows they have."""
    rows = 0
    for topic, *run in runs:
        known.setdefault(topic, array("q")).extend(run)
        rows += run[1]
    return rows


def append_block(known: dict[int, Runs], block: int, heads: Iterable[RunHead]) -> int:
    """The same for all runs of a block."""
    row = 0
    pack = _PACKED.pack
    for topic, base, count, time, size in heads:
        found = known.get(topic)
        if found is None:
            found = known[topic] = array("q")
        found.frombytes(pack(base, count, block, row, time, size))
        row += count
    return row


def pages(topic: int, runs: Runs) -> Iterator[PageRow]:
    for at in range(0, len(runs), PAGE):
        page = runs[at : at + PAGE]
        # Later offsets are in later blocks, so the last run has the highest.
        yield topic, page[0], page[-6] + page[-5], page[-4], page.tobytes()


def opened_page(row: Row) -> list[Run]:
    """The runs of a row of the index, none where it is damaged: whoever looks for them finds a gap."""
    values = opened("page", row)
    if values is None:
        return []
    topic, _, _, _, packed = values
    return runs_in(topic, packed)


def runs_in(topic: int, packed: bytes) -> list[Run]:
    runs = array("q", packed)
    return between(topic, runs, 0, count(runs))


def between(topic: int, runs: Runs, start: int, stop: int) -> list[Run]:
    stop = min(stop, count(runs))
    return [Run(topic, *runs[at : at + WIDTH]) for at in range(start * WIDTH, stop * WIDTH, WIDTH)]


def count(runs: Runs) -> int:
    return len(runs) // WIDTH


def blocks(runs: Runs) -> Runs:
    return runs[2::WIDTH]


def before(runs: Runs, offset: int) -> int:
    """Which run is the last that begins at or below the offset; the first, where all begin above it."""
    low, high = 0, count(runs)
    while high - low > 1:
        middle = (low + high) // 2
        if runs[middle * WIDTH] <= offset:
            low = middle
        else:
            high = middle
    return low


def from_first(runs: Runs, first: int) -> Runs:
    """Without the runs that lie wholly below an offset."""
    at = before(runs, first) * WIDTH
    return runs[at + WIDTH :] if runs[at] + runs[at + 1] <= first else runs[at:]
