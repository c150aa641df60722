"""The disk alone: the same bytes in the same portions, written and synced by a few lines of Python."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

from benchmarks.peer import FSYNCED, Publisher, pool

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


class Disk(Publisher):
    """A file that portions of so many messages are appended to: the limit of any broker."""

    system = "the disk alone"
    settings = ""
    promise = FSYNCED
    durable = True

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.publishing = f"write and fdatasync, portions of {rows:,}"

    def version(self) -> str | None:
        return "-"

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        folder.mkdir()
        yield str(folder)

    def prepare(self, address: str) -> None:
        """Nothing."""

    def publish(self, address: str, total: int) -> float:
        messages = pool()
        kept = [b"".join(messages[begin : begin + self.rows]) for begin in range(0, len(messages), self.rows)]
        with (Path(address) / "log").open("wb", buffering=0) as file:
            start = perf_counter()
            for portion in islice(cycle(kept), total // self.rows):
                file.write(portion)
                _sync(file.fileno())
            return perf_counter() - start
