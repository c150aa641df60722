"""Pages of the index: up to 16 consecutive runs of one topic in one row of the database."""

from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from stafeta.store.blocks import Run

PAGE_RUNS = 16  # as many as fit a row that SQLite keeps in one piece

PageRow: TypeAlias = tuple[int, int, int, int, bytes]  # topic, base, end, last block, runs


def pack(runs: Iterable[Run]) -> Iterator[PageRow]:
    """Runs in the order of the index, as rows."""
    page: list[Run] = []
    topic = 0
    for run in runs:
        if run[0] != topic or len(page) == PAGE_RUNS:
            if page:
                yield pack_page(page)
            page = []
            topic = run[0]
        page.append(run)
    if page:
        yield pack_page(page)


def pack_page(page: list[Run]) -> PageRow:
    numbers = array("q", [number for run in page for number in run[1:]])
    # Later offsets are in later blocks.
    return page[0].topic, page[0].base, page[-1].end, page[-1].block, numbers.tobytes()


def unpack(topic: int, runs: bytes) -> list[Run]:
    numbers = array("q", runs)
    width = len(Run._fields) - 1
    return [Run(topic, *numbers[at : at + width]) for at in range(0, len(numbers), width)]
